"""Tensors in parts: put together as they were, and refused where a part is missing or lies."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.files.safetensors_file import write_safetensors
from maskwright.models.files.tensor_parts import StoredTensors, TensorPart, name_part, split_part, write_parts

WHOLE = torch.arange(21.0).view(7, 3)


def cut(tensor: Tensor, places: list[int]) -> list[TensorPart]:
    ends = [0, *sorted(places), len(tensor)]
    return [TensorPart(tensor[first:end], first, len(tensor)) for first, end in pairwise(ends)]


def write(folder: Path, parts: list[dict[str, TensorPart]]) -> Path:
    for rank, part in enumerate(parts):
        write_parts(folder / name_part("a.safetensors", rank, len(parts)), part)
    return folder / "a.safetensors"


@pytest.mark.parametrize("places", [[], [3], [0, 7], [2, 2, 5]])
def test_parts_of_any_heights_are_the_whole(tmp_path: Path, places: list[int]) -> None:
    parts = [{"one": part} for part in cut(WHOLE, places)]
    parts[-1]["number"] = TensorPart(torch.tensor(5))
    stored = StoredTensors(write(tmp_path, parts))
    assert torch.equal(stored["one"], WHOLE)
    assert stored["number"] == 5
    assert stored.infos["one"].shape == (7, 3)
    for first in range(8):
        for end in range(first, 8):
            assert torch.equal(stored.read_rows("one", first, end), WHOLE[first:end])


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.integers(0, 16), max_size=4))
def test_blocks_of_parts_are_parts_of_blocks(num_blocks: int, height: int, places: list[int]) -> None:
    tensor = torch.arange(num_blocks * height * 2).view(-1, 2)
    pieces = [split_part(part, num_blocks) for part in cut(tensor, [min(place, len(tensor)) for place in places])]
    for number, block in enumerate(tensor.chunk(num_blocks)):
        own = [piece[number] for piece in pieces]
        assert torch.equal(torch.cat([part.rows for part in own]), block)
        if num_blocks > 1:
            assert {part.num_rows for part in own} == {height}
        end = 0
        for part in own:
            assert part.first_row == end or not len(part.rows)
            end += len(part.rows)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([(0, 7, 3), (4, 7, 3)], "row 3 of tensor 'one' is missing or there twice"),
        ([(0, 7, 4), (3, 7, 4)], "row 4 of tensor 'one' is missing or there twice"),
        ([(0, 7, 3)], "has 3 rows, expected 7"),
        ([(0, 7, 3), (3, 8, 4)], "not of the shape that another part gives it"),
        ([(5, 7, 3)], "has rows [5, 7], expected its first row and their number"),
    ],
)
def test_rows_that_are_missing_or_there_twice_are_refused(
    tmp_path: Path, parts: list[tuple[int, int, int]], problem: str
) -> None:
    contents = [{"one": TensorPart(torch.zeros(height, 3), first, whole)} for first, whole, height in parts]
    with pytest.raises(InputError) as caught:
        StoredTensors(write(tmp_path, contents))
    assert problem in str(caught.value)


@pytest.mark.parametrize("rows", [[0], [-1, 3], ["0", 3], {"a": 1}, [0, 1.5], [True, 3], [0, 10**400]])
def test_rows_that_are_no_rows_are_refused(tmp_path: Path, rows: Any) -> None:
    metadata = {"rows": json.dumps({"one": rows})}
    write_safetensors(tmp_path / "a.part-0-of-1.safetensors", {"one": torch.zeros(3, 2)}, metadata)
    with pytest.raises(InputError):
        StoredTensors(tmp_path / "a.safetensors")


def test_a_missing_part_is_told_and_another_file_is_no_part(tmp_path: Path) -> None:
    path = write(tmp_path, [{"one": part} for part in cut(WHOLE, [2, 4])])
    write_safetensors(tmp_path / "a.part-x-of-3.safetensors", {"two": WHOLE})
    assert set(StoredTensors(path)) == {"one"}
    (tmp_path / "a.part-1-of-3.safetensors").unlink()
    with pytest.raises(InputError, match=r"does not have all parts of a\.safetensors, only 2"):
        StoredTensors(path)


def test_a_whole_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [{"one": TensorPart(WHOLE)}, {"one": TensorPart(WHOLE)}])
    with pytest.raises(InputError, match=r"is in a\.part-0-of-2\.safetensors and a\.part-1-of-2\.safetensors"):
        StoredTensors(path)
