"""One .safetensors file: the header is checked in full before memory is allocated for tensors. Files are written too.

The format: 8 bytes with the header's length (little-endian), the header (a JSON object: tensor name to dtype, shape
and place in the data), then the data without holes (https://github.com/huggingface/safetensors#format). Tensors are
read by the safetensors library, which checks what it reads. It keeps Python's lock while it copies and writes, which
stops a training loop for as long; the plain file writes here release it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from maskwright.errors import InputError
from maskwright.storage import naming
from maskwright.untrusted import ADVICE, parse_json_object, shorten

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_DIMENSIONS = 64
"""The limit of torch's operations."""
MAX_ELEMENTS = 2**63 - 1
"""The limit of torch's strides."""

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_WRITTEN_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
_DTYPE_NAMES = {_DTYPES[name]: name for name in _WRITTEN_DTYPES}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's entry in the header; `begin` and `end` are offsets in the data after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of a .safetensors file by name; an InputError if the file is not exactly what its header says."""
    text, data_bytes = _read_header_text(path)
    entries = parse_json_object(text, f"the header of {path}")
    _check_metadata(path, entries.pop(_METADATA, {}))
    header = {name: _read_entry(path, name, entry) for name, entry in entries.items()}
    _check_layout(path, header, data_bytes)
    return header


def read_metadata(path: Path) -> dict[str, str]:
    """What the header says beside the tensors."""
    metadata = parse_json_object(_read_header_text(path)[0], f"the header of {path}").get(_METADATA, {})
    _check_metadata(path, metadata)
    return dict(metadata)


def damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} is damaged or no safetensors file: {what}; {ADVICE}")


def _read_header_text(path: Path) -> tuple[bytes, int]:
    if not path.is_file():  # opening a named pipe or a device would wait or never end
        raise InputError(f"{path} is not a file; {ADVICE}")
    with path.open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        if file_bytes < _LENGTH_BYTES:
            raise damaged(path, f"it has {file_bytes} bytes, expected at least {_LENGTH_BYTES}")
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise damaged(path, f"a header of {header_bytes} bytes, expected at most {MAX_HEADER_BYTES}")
        data_bytes = file_bytes - _LENGTH_BYTES - header_bytes
        if data_bytes < 0:
            raise damaged(path, f"a header of {header_bytes} bytes in a file of {file_bytes}")
        return file.read(header_bytes), data_bytes


def _check_metadata(path: Path, metadata: object) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged(path, f"{_METADATA} is {shorten(metadata)}, expected an object of strings")


def _read_entry(path: Path, name: str, entry: Any) -> TensorInfo:
    tensor = f"tensor {shorten(name)}"
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise damaged(path, f"{tensor} is {shorten(entry)}, expected an object of {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise damaged(path, f"{tensor} has dtype {shorten(dtype)}, expected one of {', '.join(_DTYPES)}")
    if not _are_counts(shape):
        raise damaged(path, f"{tensor} has shape {shorten(shape)}, expected a list of non-negative integers")
    # sizes beside a zero count too: torch multiplies them into strides
    if len(shape) > MAX_DIMENSIONS or math.prod(filter(None, shape)) > MAX_ELEMENTS:
        raise damaged(path, f"{tensor} has shape {shorten(shape)}, expected one that fits in a computer")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise damaged(path, f"{tensor} has data_offsets {shorten(offsets)}, expected two non-negative integers")
    info = TensorInfo(_DTYPES[dtype], tuple(shape), offsets[0], offsets[1])
    expected_bytes = math.prod(shape) * info.dtype.itemsize
    if info.num_bytes != expected_bytes:
        raise damaged(
            path,
            f"{tensor} has data_offsets {shorten(offsets)}, "
            f"expected {expected_bytes} bytes for dtype {dtype} and shape {shorten(shape)}",
        )
    return info


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, header: Mapping[str, TensorInfo], data_bytes: int) -> None:
    expected_begin = 0
    for name, info in sorted(header.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != expected_begin:
            problem = "overlaps the tensor before it" if info.begin < expected_begin else "leaves a hole before it"
            raise damaged(
                path,
                f"tensor {shorten(name)} begins at byte {shorten(info.begin)} and {problem}, expected {expected_begin}",
            )
        if info.end > data_bytes:
            raise damaged(
                path, f"tensor {shorten(name)} ends at byte {info.end} of the data, which has {data_bytes} (cut off?)"
            )
        expected_begin = info.end
    if expected_begin != data_bytes:
        raise damaged(path, f"{data_bytes} bytes of data, its tensors take {expected_begin}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    read_header(path)
    return load_tensors(path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file whose header was checked."""
    try:
        return load_file(path)
    except safetensors.SafetensorError as error:
        raise damaged(path, str(error)) from error


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """`tensors` are contiguous and on the CPU; the largest elements come first, so that all are aligned."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin = 0
    for name in names:
        tensor = tensors[name]
        end = begin + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with naming(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
