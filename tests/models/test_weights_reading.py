"""Model folders from strangers: configurations, whole and sharded weights, and names that lead elsewhere."""

from __future__ import annotations

import builtins
import io
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from maskwright.errors import InputError
from maskwright.models.files.model_folder import list_weights_files, read_config, read_shapes, read_weights

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
TENSORS = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.tensor([True, False])}


def write(folder: Path, content: bytes, name: str = MODEL) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def write_shards(folder: Path, weight_map: Any, **shards: dict[str, torch.Tensor]) -> None:
    for name, tensors in shards.items():
        save_file(tensors, folder / f"{name}.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


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


def test_shards_that_transformers_writes_read_as_the_whole(tmp_path):
    model = small_bert()
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    files = list_weights_files(tmp_path / "shards")
    assert len(files) > 1
    assert not (tmp_path / "shards" / MODEL).exists()
    assert list_weights_files(tmp_path / "whole") == [tmp_path / "whole" / MODEL]
    assert_same(read_weights(tmp_path / "shards"), read_weights(tmp_path / "whole"))
    shapes = {name: info.shape for name, info in read_shapes(tmp_path / "shards").items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in read_weights(tmp_path / "whole").items()}


def test_files_that_are_links_are_read_as_in_the_hubs_cache(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(TENSORS, tmp_path / "blobs" / "0a1b")
    (tmp_path / "snapshot" / MODEL).symlink_to(tmp_path / "blobs" / "0a1b")
    assert_same(read_weights(tmp_path / "snapshot"), TENSORS)


OUTSIDE_NAMES = [
    "../x.safetensors",
    "sub/x.safetensors",
    "sub\\x.safetensors",
    "..\\x.safetensors",
    "C:x.safetensors",
    "x.safetensors\0",
    "x\n.safetensors",
    "x.safetensors\n",
    "x.bin",
    "..",
    "",
    ".safetensors",
    "\ud800.safetensors",
    "y" * 300 + ".safetensors",
    None,
    7,
    ["x.safetensors"],
]


@pytest.mark.parametrize("name", OUTSIDE_NAMES, ids=ascii)
def test_an_index_may_only_name_plain_files_of_its_folder(tmp_path, name):
    write_shards(tmp_path, {"a": name})
    for read in (list_weights_files, read_shapes, read_weights):
        with pytest.raises(InputError, match=r"expected the plain name of a \.safetensors file in the folder"):
            read(tmp_path)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_file_outside_the_folder_is_not_opened(tmp_path, monkeypatch, absolute):
    outside, folder = tmp_path / "x.safetensors", tmp_path / "model"
    folder.mkdir()
    save_file(TENSORS, outside)
    write_shards(folder, {"a": str(outside) if absolute else "../x.safetensors"})
    opened: list[str] = []

    def record(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(os.path.realpath(file))
        return io_open(file, *args, **kwargs)

    io_open = io.open
    monkeypatch.setattr(io, "open", record)
    monkeypatch.setattr(builtins, "open", record)
    with pytest.raises(InputError, match="expected the plain name"):
        read_weights(folder)
    assert opened == [str((folder / INDEX).resolve())]


def test_an_index_and_its_shards_must_agree(tmp_path):
    one, two = {"a": TENSORS["a"]}, {"b": TENSORS["b"]}
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, one=one, two=two)
    assert_same(read_weights(tmp_path), TENSORS)
    assert list_weights_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]

    write_shards(tmp_path, {"a": "two.safetensors", "b": "one.safetensors"})
    with pytest.raises(InputError, match=r"places tensor 'a' in two\.safetensors, which lacks it"):
        list_weights_files(tmp_path)
    write_shards(tmp_path, {"a": "one.safetensors", "c": "one.safetensors"})
    with pytest.raises(InputError, match=r"places tensor 'c' in one\.safetensors, which lacks it"):
        read_shapes(tmp_path)
    write_shards(tmp_path, {"a": "one.safetensors", "b": "three.safetensors"})
    with pytest.raises(InputError, match=r"names three\.safetensors, which is not in the folder"):
        read_weights(tmp_path)
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, two=TENSORS)
    with pytest.raises(InputError, match=r"'a' is in both one\.safetensors and two\.safetensors"):
        read_weights(tmp_path)


def test_a_damaged_shard_is_refused(tmp_path):
    write_shards(tmp_path, {"a": "one.safetensors"}, one={"a": TENSORS["a"]})
    with (tmp_path / "one.safetensors").open("ab") as file:
        file.write(b"!")
    with pytest.raises(InputError, match=r"one\.safetensors is damaged .* 25 bytes of data, its tensors take 24"):
        list_weights_files(tmp_path)


@pytest.mark.parametrize("index", [b"{}", b'{"weight_map": {}}', b'{"weight_map": ["one.safetensors"]}', b"[]", b"{"])
def test_an_index_without_a_map_is_refused(tmp_path, index):
    write(tmp_path, index, INDEX)
    with pytest.raises(InputError, match=r"index\.json (has weight_map|holds a list|is not valid JSON)"):
        read_weights(tmp_path)


def test_a_folder_without_weights_says_what_is_missing(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"is not a complete model folder: model\.safetensors is missing"):
            read_weights(folder)


def test_a_config_is_read_as_data(tmp_path):
    config = {"model_type": "bert", "hidden_size": 8, "eps": 1e-12, "nested": {"a": [1, None, True]}}
    write(tmp_path, json.dumps(config).encode(), "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(tmp_path) == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff{}", "is not valid JSON"),
        (b"[1]", "holds a list, expected a JSON object"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1e999}', "a number is too large for a float"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"a": ' + b"[" * 64 + b"1" + b"]" * 64 + b"}", "nested more than 64 levels deep"),
        (b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", "nested more than 64 levels deep"),
        (b'{"a": "' + b"x" * (16 * 2**20) + b'"}', "is larger than 16777216 bytes"),
        (b'{"a": [' + b"1," * 1_000_001 + b"1]}", "more than 1,000,000 JSON values"),
    ],
    ids=lambda value: ascii(value[:20]),
)
def test_a_hostile_or_damaged_config_is_refused(tmp_path, content, message):
    path = write(tmp_path, content, "config.json")
    with pytest.raises(InputError, match=message) as refusal:
        read_config(tmp_path)
    assert str(path) in str(refusal.value)


def test_a_missing_config_is_named(tmp_path):
    with pytest.raises(InputError, match=r"is not a complete model folder: config\.json is missing"):
        read_config(tmp_path)


def test_nesting_up_to_the_limit_is_read(tmp_path):
    write(tmp_path, b'{"a": ' + b"[" * 63 + b"1" + b"]" * 63 + b"}", "config.json")
    assert "a" in read_config(tmp_path)


def test_code_a_config_names_is_dropped_with_a_warning_and_never_imported(tmp_path, monkeypatch):
    config = {"model_type": "bert", "auto_map": {"AutoModel": "hostile_code.Model"}, "trust_remote_code": True}
    write(tmp_path, json.dumps(config).encode(), "config.json")
    (tmp_path / "hostile_code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"names code of its own \('auto_map', 'trust_remote_code'\); it is never run"):
        assert read_config(tmp_path) == {"model_type": "bert"}
    assert "hostile_code" not in sys.modules
    assert not (tmp_path / "ran").exists()


def test_a_config_that_declines_foreign_code_gives_no_warning(tmp_path):
    write(tmp_path, b'{"trust_remote_code": false, "auto_map": {}, "x": 1}', "config.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_config(tmp_path) == {"x": 1}
