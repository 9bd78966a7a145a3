"""GGUF, the file format of llama.cpp: keys with values, then tensors, written and read back.

The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. All numbers are little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import RunError

Number = Literal["fp32", "fp16", "int8"]
Value = bool | int | float | str | Sequence[str] | NDArray[np.int32]
_MAGIC, _VERSION = b"GGUF", 3
_ALIGNMENT = 32
"""Of each tensor's first byte; the format's own where a file says nothing else."""
_TYPES: dict[Number, int] = {"fp32": 0, "fp16": 1, "int8": 8}
"""ggml's numbers for the types of tensors; int8 is its Q8_0."""
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
BLOCK = 32
"""Numbers that share a scale in int8."""
_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("values", "i1", BLOCK)])
_LARGEST_INT8 = 127


@dataclass(frozen=True)
class GGUFTensor:
    name: str
    values: NDArray[np.float32]
    number: Number = "fp32"

    @property
    def num_bytes(self) -> int:
        if self.number == "int8":
            return self.values.size // BLOCK * _BLOCK_TYPE.itemsize
        return self.values.size * (4 if self.number == "fp32" else 2)


def write_gguf(path: Path, keys: Mapping[str, Value], tensors: Sequence[GGUFTensor]) -> None:
    """Tensors are encoded one at a time, so memory holds one more than the model."""
    with path.open("wb") as file:
        file.write(_MAGIC + struct.pack("<IQQ", _VERSION, len(tensors), len(keys)))
        for name, value in keys.items():
            _write_string(file, name)
            _write_value(file, value)
        place = 0
        for tensor in tensors:
            _write_string(file, tensor.name)
            sizes = tensor.values.shape[::-1]  # theirs begin with the size of a row
            file.write(struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, _TYPES[tensor.number], place))
            place += _align(tensor.num_bytes)
        _fill(file, file.tell())
        for tensor in tensors:
            file.write(encode(tensor.values, tensor.number))
            _fill(file, tensor.num_bytes)


def encode(values: NDArray[np.float32], number: Number) -> bytes:
    if number != "int8":
        return values.astype("<f4" if number == "fp32" else "<f2").tobytes()
    blocks = values.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / _LARGEST_INT8
    encoded = np.empty(len(blocks), _BLOCK_TYPE)
    encoded["scale"] = scales[:, 0]
    encoded["values"] = np.rint(np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0))
    return encoded.tobytes()


def _write_string(file: IO[bytes], text: str) -> None:
    encoded = text.encode()
    file.write(struct.pack("<Q", len(encoded)) + encoded)


def _write_value(file: IO[bytes], value: Value) -> None:
    if isinstance(value, str):
        file.write(struct.pack("<I", _STRING))
        _write_string(file, value)
    elif isinstance(value, bool):
        file.write(struct.pack("<I?", _BOOL, value))
    elif isinstance(value, int):
        file.write(struct.pack("<II", _UINT32, value))
    elif isinstance(value, float):
        file.write(struct.pack("<If", _FLOAT32, value))
    elif isinstance(value, np.ndarray):
        file.write(struct.pack("<IIQ", _ARRAY, _INT32, len(value)) + value.astype("<i4").tobytes())
    else:
        file.write(struct.pack("<IIQ", _ARRAY, _STRING, len(value)))
        for text in value:
            _write_string(file, text)


def _align(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _fill(file: IO[bytes], num_bytes: int) -> None:
    file.write(bytes(_align(num_bytes) - num_bytes))


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """The keys of a file of `write_gguf` and its tensors as numbers, whatever they were encoded in."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader = _Reader(content)
        if content[:4] != _MAGIC or reader.take("<4xI") != _VERSION:
            raise RunError(f"{path} is no GGUF file of version {_VERSION}")
        num_tensors, num_keys = reader.take("<Q"), reader.take("<Q")
        keys = {reader.take_string(): reader.take_value() for _ in range(num_keys)}
        described = [reader.describe_tensor() for _ in range(num_tensors)]
        begin = _align(reader.place)
        return keys, {name: _decode(content, begin + place, *form) for name, form, place in described}


class _Reader:
    def __init__(self, content: mmap.mmap) -> None:
        self._content, self.place = content, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._content, self.place)
        self.place += struct.calcsize(form)
        return value

    def take_string(self) -> str:
        length = self.take("<Q")
        self.place += length
        return self._content[self.place - length : self.place].decode()

    def take_value(self) -> Any:
        kind = self.take("<I")
        if kind != _ARRAY:
            return self._take_one(kind)
        kind, length = self.take("<I"), self.take("<Q")
        return [self._take_one(kind) for _ in range(length)]

    def _take_one(self, kind: int) -> Any:
        if kind == _STRING:
            return self.take_string()
        return self.take({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}[kind])

    def describe_tensor(self) -> tuple[str, tuple[tuple[int, ...], Number], int]:
        """Name, shape and type, and where it begins behind all descriptions."""
        name = self.take_string()
        sizes = tuple(self.take("<Q") for _ in range(self.take("<I")))
        kind = self.take("<I")
        (number,) = (number for number, one in _TYPES.items() if one == kind)
        return name, (sizes[::-1], number), self.take("<Q")


def _decode(content: mmap.mmap, place: int, shape: tuple[int, ...], number: Number) -> NDArray[np.float32]:
    size = int(np.prod(shape))
    if number != "int8":
        kind = "<f4" if number == "fp32" else "<f2"
        return np.frombuffer(content, kind, size, place).astype(np.float32).reshape(shape)
    blocks = np.frombuffer(content, _BLOCK_TYPE, size // BLOCK, place)
    return (blocks["values"] * blocks["scale"].astype(np.float32)[:, None]).reshape(shape)
