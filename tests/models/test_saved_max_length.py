"""The longest input that a saved tokenizer names is the one that its model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.models.bert import BERT
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer

_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 40}


def _build(encoder_class: type[PackedEncoder], tokenizer: Tokenizer, **options: Any) -> MaskedLanguageModel:
    encoder = encoder_class.from_variant("tiny", vocab_size=tokenizer.vocab_size, **(_SHAPE | options))
    return MaskedLanguageModel(encoder, tokenizer=tokenizer).eval()


def _read(folder: Path) -> Any:
    return json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"]


@pytest.mark.parametrize("encoder_class", FAMILIES.values(), ids=lambda cls: cls.__name__)
def test_the_file_names_the_longest_text_that_the_model_reads(
    encoder_class: type[PackedEncoder], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model = _build(encoder_class, tokenizer)
    model.save_pretrained(tmp_path, tokenizer)
    longest = _read(tmp_path)
    ids = torch.full((1, longest), tokenizer.cls_token_id)
    assert model(input_ids=ids).logits.shape[1] == longest
    offsets = 40 - longest
    assert offsets == getattr(model.encoder, "first_position", 0)  # rows of the table that no token reads


def test_a_run_of_transformers_counts_from_behind_its_padding(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CamembertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        pad_token_id=1,
    )
    transformers.CamembertForMaskedLM(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    MaskedLanguageModel.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours", tokenizer)
    assert _read(tmp_path / "ours") == 38


@pytest.mark.parametrize(("given", "written"), [(16, 16), (512, 40), (10**30, 40), (1e30, 40), (None, 40), (True, 40)])
def test_a_smaller_length_of_the_tokenizer_stays(
    given: Any, written: int, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": given}))
    loaded = load_tokenizer(tmp_path)
    _build(BERT, loaded).save_pretrained(tmp_path / "model", loaded)
    assert _read(tmp_path / "model") == written


def test_the_length_outlives_a_folder_without_a_model(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "first", max_length=16)
    load_tokenizer(tmp_path / "first").save(tmp_path / "second")
    assert _read(tmp_path / "second") == 16


def test_transformers_cuts_a_long_text_to_what_its_model_reads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    _build(BERT, tokenizer).save_pretrained(tmp_path, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs("a long text " * 100, truncation=True)["input_ids"]) == 40
    assert as_tokenizer(theirs).model_max_length == 40
