"""Hugging Face folders: loaded by others without flags, read back bit for bit, refused with the reason."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, pipeline

from maskwright.errors import InputError, RunError
from maskwright.export import huggingface
from maskwright.export.comparison import check_tokenizer, choose_sample
from maskwright.export.huggingface import export_huggingface
from maskwright.inference.fill_mask import fill_mask
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=2, width=32, length=48)
MAGNITUDE = 4.0  # of logits: 32 terms of weights near 0.1

Build = Callable[..., MaskedLanguageModel]


@pytest.fixture(params=[BERT, ModernBERT], ids=lambda cls: cls.__name__)
def model(request: pytest.FixtureRequest, build_tiny: Build) -> MaskedLanguageModel:
    return build_tiny(request.param)


@pytest.fixture
def texts(sentences: list[str]) -> list[str]:
    return [*sentences, " ".join(sentences[:10])]


def ignore(line: str) -> None:
    """What an export says, where a test does not look at it."""


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    tensors = second.state_dict()
    assert first.state_dict().keys() == tensors.keys()
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name


def test_auto_classes_load_the_folder_and_compute_the_same(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)
    their_tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    inputs = their_tokenizer(texts[:3], padding=True, return_tensors="pt")
    is_real = inputs["attention_mask"].bool()
    ours = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(**inputs).logits
        hidden = AutoModel.from_pretrained(tmp_path).eval()(**inputs).last_hidden_state
        assert_rounded(logits[is_real], model(**ours).logits[is_real], NUM_TERMS)
        expected = model.encoder(**ours).last_hidden_state
    assert_rounded(hidden[is_real], expected[is_real], NUM_TERMS)


def test_fill_mask_pipeline_gives_our_answers(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)
    text = "the cat [MASK] the green house."
    theirs = pipeline("fill-mask", model=str(tmp_path))(text, top_k=5)
    (ours,) = fill_mask(model, tokenizer, text, top_k=5)
    assert [answer["token"] for answer in theirs] == [answer.token for answer in ours]
    assert [answer["token_str"] for answer in theirs] == [answer.token_str for answer in ours]
    error = rounding(NUM_TERMS, MAGNITUDE)
    assert [answer["score"] for answer in theirs] == pytest.approx([answer.score for answer in ours], abs=error)


def test_model_survives_the_way_through_transformers_bit_for_bit(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    model.mask_ratio = 0.3
    export_huggingface(model, tokenizer, tmp_path / "ours", texts=texts, say=ignore)
    AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    shutil.copy(tmp_path / "ours" / "tokenizer.json", tmp_path / "theirs")
    loaded = MaskedLanguageModel.from_pretrained(tmp_path / "theirs")
    assert_same_weights(model, loaded)
    assert loaded.mask_ratio == 0.3
    assert loaded.special_token_ids == model.special_token_ids
    assert loaded.encoder.config == model.encoder.config


def test_exporting_the_export_changes_nothing(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    export_huggingface(model, tokenizer, tmp_path / "one", texts=texts, say=ignore)
    again = MaskedLanguageModel.from_pretrained(tmp_path / "one")
    export_huggingface(again, tokenizer, tmp_path / "two", texts=texts, say=ignore)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


def test_settings_have_what_loaders_look_for(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)
    config, settings = read(tmp_path / "config.json"), read(tmp_path / "tokenizer_config.json")
    name = "ModernBert" if isinstance(model.encoder, ModernBERT) else "Bert"
    assert config["architectures"] == [f"{name}ForMaskedLM"]
    assert (config["model_type"], config["dtype"]) == (name.lower(), "float32")
    assert config["tie_word_embeddings"] is True
    ids = {"pad_token_id": 0, "cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    assert {key: config[key] for key in ids} == ids
    assert settings["tokenizer_class"] == "BertTokenizer"
    assert settings["model_max_length"] == 48
    assert settings["mask_token"] == "[MASK]"
    assert ("token_type_ids" in settings["model_input_names"]) == isinstance(model.encoder, BERT)


def test_loading_logs_and_warns_of_nothing(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    texts: list[str],
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        AutoModelForMaskedLM.from_pretrained(tmp_path)
        AutoTokenizer.from_pretrained(tmp_path)
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []
    assert [str(warning.message) for warning in recwarn] == []


def test_the_largest_difference_is_said_and_returned(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    lines: list[str] = []
    comparison = export_huggingface(model, tokenizer, tmp_path, texts=texts, say=lines.append)
    assert comparison.reader.startswith("transformers ")
    assert comparison.largest_difference <= rounding(NUM_TERMS, MAGNITUDE)
    assert (comparison.num_texts, comparison.num_tokens > 8 * 5) == (8, True)
    assert f"differ by at most {comparison.largest_difference:.2g}" in lines[-1]
    assert f"{len(model.state_dict())} tensors are bit-equal" in lines[0]


def test_verbosity_of_transformers_is_left_as_it_was(
    build_tiny: Build, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    from transformers.utils import logging as their_logging

    before = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    export_huggingface(build_tiny(), tokenizer, tmp_path, texts=texts, say=ignore)
    assert (their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()) == before


def test_without_transformers_the_comparison_is_with_our_reader(
    build_tiny: Build, tokenizer: Tokenizer, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.export.comparison.find_spec", lambda package: None)
    lines: list[str] = []
    comparison = export_huggingface(build_tiny(), tokenizer, tmp_path, texts=texts, say=lines.append)
    assert (comparison.reader, comparison.largest_difference) == ("maskwright's own reader", 0.0)
    assert any("transformers is not installed" in line for line in lines)


@pytest.mark.parametrize("change", [0.01, float("nan")])
def test_other_logits_end_the_export(
    build_tiny: Build,
    tokenizer: Tokenizer,
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: float,
) -> None:
    compute = huggingface._compute_their_logits

    def compute_others(*arguments: Any) -> torch.Tensor:
        logits = compute(*arguments).clone()
        logits[-1, 3, 2] += change
        return logits

    monkeypatch.setattr(huggingface, "_compute_their_logits", compute_others)
    with pytest.raises(RunError, match="answers differently"):
        export_huggingface(build_tiny(), tokenizer, tmp_path, texts=texts, say=ignore)


def test_weights_that_are_written_wrongly_end_the_export(
    build_tiny: Build, tokenizer: Tokenizer, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = build_tiny(), build_tiny()
    with torch.no_grad():
        other.mlm_dense.weight[0, 0] += 1e-6
    monkeypatch.setattr(model, "save_pretrained", other.save_pretrained)
    with pytest.raises(RunError, match=r"'mlm_dense\.weight' was read back"):
        export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)


def test_a_tokenizer_that_reads_other_ids_is_found(
    build_tiny: Build, tokenizer: Tokenizer, texts: list[str], tmp_path: Path
) -> None:
    model = build_tiny()
    export_huggingface(model, tokenizer, tmp_path, texts=texts, say=ignore)
    sample = choose_sample(texts, tokenizer, model.encoder)
    check_tokenizer(sample, tmp_path)
    with pytest.raises(RunError, match="other token ids"):
        check_tokenizer(replace(sample, rows=[[*row[:-1], 7] for row in sample.rows]), tmp_path)


def test_compared_texts_are_of_all_lengths_and_fit_the_model(
    build_tiny: Build, tokenizer: Tokenizer, texts: list[str]
) -> None:
    sample = choose_sample([*texts, "  "], tokenizer, build_tiny().encoder)
    lengths = [len(row) for row in sample.rows]
    assert sample.texts[0] == min(texts, key=len)
    assert sample.texts[-1] == max(texts, key=len)
    assert (len(lengths), max(lengths)) == (8, 48)
    assert all(row[0] == tokenizer.cls_token_id and row[-1] == tokenizer.sep_token_id for row in sample.rows)


def test_without_text_nothing_can_be_compared(build_tiny: Build, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no text to compare"):
        export_huggingface(build_tiny(), tokenizer, tmp_path, texts=["", " "], say=ignore)
