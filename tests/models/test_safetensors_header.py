"""A .safetensors file that is not what its header says is refused, at no cost."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from maskwright.errors import InputError
from maskwright.models.files.model_folder import read_shapes, read_weights
from maskwright.models.files.safetensors_file import TensorInfo, read_header, read_tensors

MODEL = "model.safetensors"
TENSORS = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.tensor([True, False])}


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def file_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(folder: Path, content: bytes, name: str = MODEL) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def assert_same(read: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(read) == set(expected)
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_a_header_tells_dtype_shape_and_place_of_each_tensor(tmp_path):
    save_file(TENSORS, tmp_path / MODEL, {"format": "pt"})
    header = read_header(tmp_path / MODEL)
    assert header == {"a": TensorInfo(torch.float32, (2, 3), 0, 24), "b": TensorInfo(torch.bool, (2,), 24, 26)}
    assert header["a"].num_bytes == 24
    assert_same(read_weights(tmp_path), TENSORS)
    assert_same(read_tensors(tmp_path / MODEL), TENSORS)
    assert read_shapes(tmp_path) == header


DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int64", "int32"]
DTYPES += ["int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def test_every_dtype_the_library_writes_is_read_as_itself(tmp_path):
    save_file({name: torch.zeros(3, dtype=getattr(torch, name)) for name in DTYPES}, tmp_path / MODEL)
    expected = {name: getattr(torch, name) for name in DTYPES}
    assert {name: info.dtype for name, info in read_shapes(tmp_path).items()} == expected
    assert {name: tensor.dtype for name, tensor in read_weights(tmp_path).items()} == expected


def test_scalars_and_tensors_without_elements_are_read(tmp_path):
    tensors = {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 4), "more": torch.ones(2)}
    save_file(tensors, tmp_path / MODEL)
    assert_same(read_weights(tmp_path), tensors)


FOUR = b"\0" * 4
HOSTILE_FILES = {
    "no bytes": (b"", "it has 0 bytes, expected at least 8"),
    "seven bytes": (b"\0" * 7, "it has 7 bytes"),
    "header beyond the file": ((9).to_bytes(8, "little") + b"{}", "a header of 9 bytes in a file of 10"),
    "header beyond the format": ((100_000_001).to_bytes(8, "little") + b"{}", "expected at most 100000000"),
    "no header": (file_bytes(b""), "is not valid JSON: Expecting value"),
    "cut JSON": (file_bytes(b'{"a":'), "is not valid JSON"),
    "not UTF-8": (file_bytes(b'{"\xff": 1}'), "is not valid JSON: 'utf-8' codec"),
    "a list": (file_bytes([]), "holds a list, expected a JSON object"),
    "recursion bomb": (file_bytes(b"[" * 100_000), r"nested more than 64 levels deep"),
    "list bomb": (file_bytes(b'{"a":[' + b"[]," * 600_000 + b"[]]}"), "more than 1,000,000 JSON values"),
    "digits bomb": (file_bytes(b'{"a":' + b"9" * 5000 + b"}"), r"Exceeds the limit \(4300 digits\)"),
    "NaN": (file_bytes(b'{"a":NaN}'), "NaN is not a JSON number"),
    "duplicate tensor": (file_bytes(b'{"a":1,"a":2}'), "the key 'a' occurs twice"),
    "duplicate field": (file_bytes(b'{"a":{"dtype":"F32","dtype":"F16"}}'), "the key 'dtype' occurs twice"),
    "metadata list": (file_bytes({"__metadata__": ["pt"]}), r"__metadata__ is \['pt'\], expected an object of strings"),
    "metadata number": (file_bytes({"__metadata__": {"format": 1}}), "expected an object of strings"),
    "entry is a number": (file_bytes({"a": 1}), "tensor 'a' is 1, expected an object of"),
    "entry lacks offsets": (file_bytes({"a": {"dtype": "F32", "shape": []}}), "expected an object of data_offsets"),
    "unknown dtype": (file_bytes({"a": entry([1], [0, 4], "F33")}, FOUR), "dtype 'F33', expected one of F64, F32"),
    "dtype is a list": (file_bytes({"a": entry([1], [0, 4], ["F32"])}, FOUR), r"dtype \['F32'\]"),
    "shape is a number": (file_bytes({"a": entry(1, [0, 4])}, FOUR), "shape 1, expected a list of non-negative"),
    "negative shape": (file_bytes({"a": entry([-1, -1], [0, 4])}, FOUR), r"shape \[-1, -1\], expected a list"),
    "bool in shape": (file_bytes({"a": entry([True], [0, 4])}, FOUR), r"shape \[True\], expected a list"),
    "float in shape": (file_bytes({"a": entry([1.0], [0, 4])}, FOUR), r"shape \[1.0\], expected a list"),
    "product overflows to fit": (file_bytes({"a": entry([2**32, 2**32], [0, 0])}), "one that fits in a computer"),
    "absurd beside a zero": (file_bytes({"a": entry([0, 2**40, 2**40], [0, 0])}), "one that fits in a computer"),
    "too many dimensions": (file_bytes({"a": entry([1] * 65, [0, 4])}, FOUR), "one that fits in a computer"),
    "huge but countable": (file_bytes({"a": entry([2**50], [0, 4])}, FOUR), "expected 4503599627370496 bytes"),
    "offset of bools": (file_bytes({"a": entry([0], [False, False])}), "expected two non-negative integers"),
    "one offset": (file_bytes({"a": entry([1], [4])}, FOUR), r"data_offsets \[4\], expected two"),
    "offset is text": (file_bytes({"a": entry([1], "04")}, FOUR), "data_offsets '04', expected two"),
    "negative offset": (file_bytes({"a": entry([1], [-4, 0])}, FOUR), r"data_offsets \[-4, 0\], expected two"),
    "offsets backwards": (file_bytes({"a": entry([1], [4, 0])}, FOUR), "expected 4 bytes for dtype F32 and shape"),
    "size is not the shape's": (file_bytes({"a": entry([2], [0, 4])}, FOUR), "expected 8 bytes for dtype F32"),
    "out of range": (file_bytes({"a": entry([2**40], [0, 2**42])}, FOUR), "of the data, which has 4"),
    "overlap": (file_bytes({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, FOUR), "'b' begins at byte 0 and overl"),
    "hole": (file_bytes({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, FOUR * 3), "byte 8 and leaves a hole"),
    "hole at the start": (file_bytes({"a": entry([1], [4, 8])}, FOUR * 2), "byte 4 and leaves a hole"),
    "data cut off": (file_bytes({"a": entry([1], [0, 4])}, b"\0" * 3), r"ends at byte 4 .* has 3"),
    "data too long": (file_bytes({"a": entry([1], [0, 4])}, FOUR + b"!"), "5 bytes of data, its tensors take 4"),
}


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_a_hostile_or_damaged_file_is_refused_in_one_line(tmp_path, kind):
    content, message = HOSTILE_FILES[kind]
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=message) as refusal:
        read_header(path)
    text = str(refusal.value)
    assert str(path) in text
    assert text.endswith("fetch or export the model again")
    assert "\n" not in text
    assert len(text) - len(str(path)) < 600
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path)
    with pytest.raises(InputError, match=message):
        read_tensors(path)


def test_a_hostile_name_cannot_flood_or_break_the_message(tmp_path):
    path = write(tmp_path, file_bytes({"x\n\x1b[31m" + "y" * 100_000: 1}))
    with pytest.raises(InputError) as refusal:
        read_header(path)
    assert r"x\n\x1b[31m" in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_a_header_length_of_2_to_the_60_takes_no_memory(tmp_path):
    path = write(tmp_path, (2**60).to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"a header of {2**60} bytes"):
            read_header(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 500_000


def test_a_named_pipe_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / MODEL)
    with pytest.raises(InputError, match="is not a file"):
        read_header(tmp_path / MODEL)
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        read_weights(tmp_path)


VALID = file_bytes(
    {"__metadata__": {"format": "pt"}, "a": entry([2, 3], [0, 24]), "b": entry([2], [24, 26], "BOOL")},
    torch.arange(6, dtype=torch.float32).numpy().tobytes() + b"\1\0",
)
SHAPES = {"a": (2, 3), "b": (2,)}


@settings(max_examples=400, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(1, 255)), min_size=1, max_size=6))
@example(flips=[(0, 1)])
@example(flips=[(len(VALID) - 1, 255)])
def test_flipped_bytes_give_a_readable_file_or_a_refusal(tmp_path_factory, flips):
    content = bytearray(VALID)
    for place, bits in flips:
        content[place] ^= bits
    folder = tmp_path_factory.mktemp("flipped")
    write(folder, bytes(content))
    try:
        header = read_header(folder / MODEL)
        weights = read_weights(folder)
    except InputError:
        return
    # a flip in a name or a dimension may give another valid file; the library then reads the same thing
    assert {name: (info.shape, info.dtype) for name, info in header.items()} == {
        name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()
    }
    assert sum(info.num_bytes for info in header.values()) == 26


@settings(max_examples=100, deadline=None)
@given(length=st.integers(0, len(VALID) - 1))
def test_a_file_cut_off_anywhere_is_refused(tmp_path_factory, length):
    folder = tmp_path_factory.mktemp("cut")
    write(folder, VALID[:length])
    with pytest.raises(InputError):
        read_weights(folder)


def test_flips_in_the_data_leave_the_shapes_as_they_were(tmp_path):
    content = bytearray(VALID)
    content[-10] ^= 255
    write(tmp_path, bytes(content))
    assert {name: tuple(tensor.shape) for name, tensor in read_weights(tmp_path).items()} == SHAPES
