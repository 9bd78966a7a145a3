"""sentence-transformers folders: the mean of the tokens' hidden states, by our encoder and by theirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.errors import InputError, RunError
from maskwright.export import huggingface as ours
from maskwright.export.huggingface import export_sentence_transformers
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=2, width=32, length=48)

Build = Callable[..., MaskedLanguageModel]


@pytest.fixture(params=[BERT, ModernBERT], ids=lambda cls: cls.__name__)
def model(request: pytest.FixtureRequest, build_tiny: Build) -> MaskedLanguageModel:
    return build_tiny(request.param)


def ignore(line: str) -> None:
    """What an export says, where a test does not look at it."""


def average_hidden_states(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str) -> torch.Tensor:
    with torch.no_grad():
        return model.encoder(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0].mean(dim=0)


def test_small_files_describe_mean_pooling_over_the_whole_length(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path
) -> None:
    export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    modules = json.loads((tmp_path / "modules.json").read_text())
    assert [(module["path"], module["type"].rsplit(".", 1)[1]) for module in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
    ]
    pooling = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert pooling["word_embedding_dimension"] == 32
    assert [name for name in pooling if name.startswith("pooling_mode") and pooling[name]] == [
        "pooling_mode_mean_tokens"
    ]
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 48
    similarity = json.loads((tmp_path / "config_sentence_transformers.json").read_text())["similarity_fn_name"]
    assert similarity == "cosine"


def test_folder_holds_the_encoder_bit_for_bit(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path
) -> None:
    export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    loaded = type(model.encoder).from_pretrained(tmp_path)
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_mean_counts_every_real_token_once(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    sample = ours.choose_sample(sentences, tokenizer, model.encoder)
    vectors = ours.embed_by_mean(model.encoder, sample)
    assert len({len(row) for row in sample.rows}) > 1
    for text, vector in zip(sample.texts, vectors, strict=True):
        assert_rounded(vector, average_hidden_states(model, tokenizer, text), NUM_TERMS)


def test_without_sentence_transformers_the_vectors_are_compared_with_transformers(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    sentences: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = ours.find_reader
    monkeypatch.setattr(ours, "find_reader", lambda package: find(package) if package == "transformers" else None)
    lines: list[str] = []
    comparison = export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=lines.append)
    assert comparison.reader.startswith("transformers ")
    assert comparison.largest_difference <= rounding(NUM_TERMS, magnitude=4.0)  # of the mean of normed states
    assert any("sentence-transformers is not installed" in line for line in lines)
    assert "vectors of 8 texts" in lines[-1]


def test_without_either_library_our_reader_compares(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "find_reader", lambda package: None)
    comparison = export_sentence_transformers(build_tiny(), tokenizer, tmp_path, texts=sentences, say=ignore)
    assert (comparison.reader, comparison.largest_difference) == ("maskwright's own reader", 0.0)


def test_other_vectors_end_the_export(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_tiny()
    vectors = ours.embed_by_mean(model.encoder, ours.choose_sample(sentences, tokenizer, model.encoder))
    monkeypatch.setattr(ours, "_choose_reader", lambda *arguments: ("theirs", vectors + 0.01))
    with pytest.raises(RunError, match="theirs answers differently"):
        export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=ignore)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"encoder_options": {"normalization_type": "rms_norm"}}, "norms are rms_norm"),
        ({"kind": CausalLanguageModel}, r"training\.mode=clm"),
    ],
    ids=["rms norm", "causal"],
)
def test_an_encoder_that_would_compute_something_else_is_refused(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=f"^a sentence-transformers folder cannot hold this model: .*{reason}"):
        export_sentence_transformers(build_tiny(**options), tokenizer, tmp_path, texts=sentences, say=ignore)


def test_a_head_that_stays_behind_is_no_obstacle(
    build_tiny: Build, tokenizer: Tokenizer, sentences: list[str], tmp_path: Path
) -> None:
    model = build_tiny(mlm_head_activation="relu")
    comparison = export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    assert comparison.largest_difference <= rounding(NUM_TERMS, magnitude=4.0)  # of the mean of normed states


def test_sentence_transformers_computes_our_mean(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    sentences: list[str],
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    comparison = export_sentence_transformers(model, tokenizer, tmp_path, texts=sentences, say=ignore)
    assert comparison.reader.startswith("sentence-transformers ")
    recwarn.clear()
    loaded = theirs.SentenceTransformer(str(tmp_path), device="cpu")
    texts = [sentences[0], " ".join(sentences[:2])]
    vectors = loaded.encode(texts, convert_to_tensor=True)
    expected = torch.stack([average_hidden_states(model, tokenizer, text) for text in texts])
    assert_rounded(vectors, expected, NUM_TERMS)
    assert loaded.max_seq_length == 48
    assert [str(warning.message) for warning in recwarn] == []
