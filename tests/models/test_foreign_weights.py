"""Weights that are not safetensors are never opened; the refusal says how to convert them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from maskwright.errors import InputError
from maskwright.models.files.model_folder import list_weights_files, read_weights

MODEL = "model.safetensors"


def write(folder: Path, content: bytes, name: str = MODEL) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def small_bert() -> transformers.BertForMaskedLM:
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    return transformers.BertForMaskedLM(config)


def assert_same(read: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert set(read) == set(expected)
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt"])
def test_files_of_a_trainer_are_not_taken_for_weights(tmp_path, name):
    write(tmp_path, b"", name)
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        read_weights(tmp_path)


class Bomb:
    """Pickled, it writes a file where it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_pickled_weights_are_refused_unopened(tmp_path):
    fuse = tmp_path / "ran"
    torch.save({"a": Bomb(fuse)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights are not read, because loading them runs code"):
        read_weights(tmp_path)
    assert not fuse.exists()


def test_the_line_given_for_pickled_weights_converts_them(tmp_path, monkeypatch):
    folder = tmp_path / "it's a model"
    model = small_bert()
    model.save_pretrained(folder)
    expected = read_weights(folder)
    (folder / MODEL).unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError) as refusal:
        read_weights(folder)
    command = shlex.split(str(refusal.value).partition("convert it with: ")[2])
    assert command[:2] == ["python", "-c"]
    assert "import BertForMaskedLM as Model" in command[2]
    monkeypatch.setattr(sys, "argv", command[1:2] + command[3:])  # here, where transformers is imported already
    exec(command[2], {"__name__": "__main__"})
    assert_same(read_weights(folder), expected)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("last.ckpt", "run there: from safetensors.torch import save_model"),
        ("weights.bin", "run there: from safetensors.torch import save_model"),
        ("pytorch_model-00001-of-00002.bin", "convert it with: python -c"),
    ],
)
def test_other_formats_are_refused_with_a_way_on(tmp_path, name, advice):
    write(tmp_path, b"", name)
    with pytest.raises(InputError, match="are not read") as refusal:
        list_weights_files(tmp_path)
    assert f"has its weights in {name} only" in str(refusal.value)
    assert advice in str(refusal.value)


@pytest.mark.parametrize("architecture", ["X; import os", "os", "$(reboot)ForMaskedLM", 7, None])
def test_a_config_cannot_put_code_into_the_line_to_run(tmp_path, architecture):
    write(tmp_path, b"", "pytorch_model.bin")
    write(tmp_path, json.dumps({"architectures": [architecture]}).encode(), "config.json")
    with pytest.raises(InputError, match="from transformers import AutoModelForMaskedLM as Model; "):
        read_weights(tmp_path)
