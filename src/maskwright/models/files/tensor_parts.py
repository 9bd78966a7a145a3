"""Tensors whose rows several processes wrote: `NAME.part-0-of-2.safetensors` and so on stand for `NAME.safetensors`.

Each file says in its metadata which rows it has of which tensor, so the parts need no other file to be read together.
A tensor that the metadata does not name is whole, and in one file only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.files.safetensors_file import (
    TensorInfo,
    damaged,
    read_header,
    read_metadata,
    write_safetensors,
)
from maskwright.untrusted import ADVICE, parse_json_object, shorten

_ROWS_KEY = "rows"
_SUFFIX = ".safetensors"
_PART = re.compile(r"(.+)\.part-(0|[1-9][0-9]{0,5})-of-([1-9][0-9]{0,5})\.safetensors", re.ASCII)


@dataclass(frozen=True)
class TensorPart:
    """Consecutive rows of a tensor; `num_rows` is None if it is the whole."""

    rows: Tensor
    first_row: int = 0
    num_rows: int | None = None


def split_part(part: TensorPart, num_blocks: int) -> list[TensorPart]:
    """The rows that it has of each of so many equal blocks of the tensor."""
    if num_blocks == 1:
        return [part]
    if part.num_rows is None:
        return [TensorPart(block) for block in part.rows.chunk(num_blocks)]
    height, end = part.num_rows // num_blocks, part.first_row + len(part.rows)
    blocks = []
    for begin in range(0, part.num_rows, height):
        first, last = (min(max(row, begin), begin + height) for row in (part.first_row, end))
        blocks.append(TensorPart(part.rows[first - part.first_row : last - part.first_row], first - begin, height))
    return blocks


def name_part(file: str, rank: int, size: int) -> str:
    return f"{file.removesuffix(_SUFFIX)}.part-{rank}-of-{size}{_SUFFIX}"


def find_whole_name(file: str) -> str:
    """The file that a part belongs to; the name of any other file as it is."""
    found = _PART.fullmatch(file)
    return file if found is None else f"{found[1]}{_SUFFIX}"


def write_parts(path: Path, parts: Mapping[str, TensorPart]) -> None:
    rows = {name: [part.first_row, part.num_rows] for name, part in parts.items() if part.num_rows is not None}
    metadata = {"format": "pt", _ROWS_KEY: json.dumps(rows)}
    write_safetensors(path, {name: part.rows for name, part in parts.items()}, metadata)


def list_part_files(path: Path) -> list[Path]:
    """The files that hold the parts of `path`, in order; none if there are no parts."""
    stem = path.name.removesuffix(_SUFFIX)
    found = [
        (part, file) for file in path.parent.glob(f"{stem}.part-*{_SUFFIX}") if (part := _PART.fullmatch(file.name))
    ]
    sizes = {int(part[3]) for part, _ in found}
    by_rank = {int(part[2]): file for part, file in found if part[1] == stem}
    if found and (len(sizes) > 1 or by_rank.keys() != set(range(max(sizes)))):
        raise InputError(f"{path.parent} does not have all parts of {path.name}, only {len(by_rank)}; {ADVICE}")
    return [by_rank[rank] for rank in sorted(by_rank)]


@dataclass(frozen=True)
class _Piece:
    file: Path
    first_row: int
    num_rows: int


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a file, or of the parts that stand for it, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        """The headers are checked: every tensor has all its rows, once."""
        self.path = path
        self._infos: dict[str, TensorInfo] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        heights: dict[str, Any] = {}
        for file in [path] if path.is_file() else list_part_files(path) or [path]:
            infos, rows = read_header(file), _read_rows(file)
            for name, info in infos.items():
                first, num_rows = _check_rows(file, name, rows.get(name), info)
                known = self._infos.setdefault(name, info)
                is_same = (known.dtype, known.shape[1:]) == (info.dtype, info.shape[1:])
                if not is_same or heights.setdefault(name, num_rows) != num_rows:
                    raise damaged(file, f"tensor {shorten(name)} is not of the shape that another part gives it")
                self._pieces.setdefault(name, []).append(_Piece(file, first, _count_rows(info)))
        for name, pieces in self._pieces.items():
            self._infos[name] = self._join(name, sorted(pieces, key=lambda piece: piece.first_row), heights[name])

    def _join(self, name: str, pieces: Sequence[_Piece], num_rows: int | None) -> TensorInfo:
        info, end = self._infos[name], 0
        if num_rows is None:
            if len(pieces) > 1:
                raise damaged(
                    self.path, f"tensor {shorten(name)} is in {pieces[0].file.name} and {pieces[1].file.name}"
                )
            return info
        for piece in pieces:
            if piece.first_row != end and piece.num_rows:
                raise damaged(piece.file, f"row {end} of tensor {shorten(name)} is missing or there twice")
            end += piece.num_rows
        if end != num_rows:
            raise damaged(self.path, f"tensor {shorten(name)} has {end} rows, expected {num_rows}")
        self._pieces[name] = [piece for piece in pieces if piece.num_rows]
        return replace(info, shape=(num_rows, *info.shape[1:]))

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Whole shapes and dtypes; the offsets are those of one part."""
        return self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._infos[name].shape
        if not shape:
            with safe_open(self._pieces[name][0].file, framework="pt") as file:
                number: Tensor = file.get_tensor(name)
                return number
        return self.read_rows(name, 0, shape[0])

    def read_rows(self, name: str, first: int, end: int) -> Tensor:
        """Rows `first` to `end` of a tensor, from the files that have them."""
        info = self._infos[name]
        whole = torch.empty((end - first, *info.shape[1:]), dtype=info.dtype)
        for piece in self._pieces[name]:
            begin, stop = max(first, piece.first_row), min(end, piece.first_row + piece.num_rows)
            if begin < stop:
                with safe_open(piece.file, framework="pt") as file:
                    rows = file.get_slice(name)[begin - piece.first_row : stop - piece.first_row]
                whole[begin - first : stop - first] = rows
        return whole


def _read_rows(file: Path) -> dict[str, Any]:
    text = read_metadata(file).get(_ROWS_KEY)
    return {} if text is None else parse_json_object(text.encode(), f"the rows in the header of {file}")


def _check_rows(file: Path, name: str, rows: Any, info: TensorInfo) -> tuple[int, int | None]:
    """The first row and the number of rows of the whole, which is None for a tensor that is not split."""
    if rows is None:
        return 0, None
    is_pair = isinstance(rows, list) and len(rows) == 2 and all(type(row) is int and row >= 0 for row in rows)
    if not is_pair or not info.shape or rows[0] + info.shape[0] > rows[1]:
        raise damaged(file, f"tensor {shorten(name)} has rows {shorten(rows)}, expected its first row and their number")
    return rows[0], rows[1]


def _count_rows(info: TensorInfo) -> int:
    return info.shape[0] if info.shape else 1
