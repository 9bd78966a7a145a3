from __future__ import annotations

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from maskwright.models.files.safetensors_file import write_safetensors

TENSORS = {
    "b.weight": torch.arange(12, dtype=torch.float32).view(3, 4),
    "a.step": torch.tensor(7.0, dtype=torch.float64),
    "half": torch.randn(5).to(torch.bfloat16),
    "ids": torch.arange(3),
    "flags": torch.tensor([True, False, True]),
    "empty": torch.empty(0, 4),
    "short": torch.tensor([1.5, -2.0, 3.25]).half(),
}


def test_what_is_written_is_read_back_by_the_library(tmp_path):
    write_safetensors(tmp_path / "x.safetensors", TENSORS, {"format": "pt"})
    read = load_file(tmp_path / "x.safetensors")
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_model_file_is_byte_equal_to_the_librarys(tmp_path):
    weights = {name: TENSORS[name] for name in ("b.weight", "a.step", "half")}
    write_safetensors(tmp_path / "ours.safetensors", weights, {"format": "pt"})
    save_file(weights, tmp_path / "theirs.safetensors", {"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_a_dtype_the_format_has_no_name_for_is_an_error(tmp_path):
    with pytest.raises(KeyError):
        write_safetensors(tmp_path / "x.safetensors", {"z": torch.zeros(1, dtype=torch.complex64)})
