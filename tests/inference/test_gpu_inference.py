"""On a GPU answers are those of fp32 on a CPU, in every precision, compiled or not; nothing waits for the device."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flat_lab import KINDS, ask, build, build_pipeline, list_numbers

from maskwright.errors import InputError
from maskwright.evaluation.likelihood import score_texts
from maskwright.inference.pipeline import pipeline
from maskwright.models.encoder import FAMILIES
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms

pytestmark = pytest.mark.gpu
WIDTH, NUM_LAYERS, LENGTH = 128, 2, 64
SETTINGS = {"hidden_size": WIDTH, "num_attention_heads": 2, "intermediate_size": 256}
"""Heads of 64, and sides that the kernels of fp8 take."""
EPSILONS = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp8": 2.0**-3}
NUM_ROUNDINGS = 12 * NUM_LAYERS
"""What a value goes through in the layers: products, sums, norms, activations and attention."""
NUM_TERMS = count_terms(num_layers=NUM_LAYERS, width=WIDTH, length=LENGTH)
COMPILED = [("bert", "bf16"), ("modernbert", "bf16"), ("neobert", "fp16"), ("bert", "fp8"), ("modernbert", "fp8")]


def tolerance(precision: str) -> float:
    """Relative to the norm: independent roundings of half an epsilon add up as a random walk; twice its length."""
    return math.sqrt(NUM_ROUNDINGS) * EPSILONS[precision]


@pytest.fixture
def texts(sentences: list[str]) -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(sentences, count)) for count in random.integers(1, 5, 100)]


def embed(encoder: Any, tokenizer: Tokenizer, texts: list[str], device: str, **options: Any) -> torch.Tensor:
    built = pipeline("embed", copy.deepcopy(encoder), tokenizer, device=device, max_length=LENGTH, **options)
    return torch.from_numpy(np.stack(built(texts)))


def assert_near(found: torch.Tensor, expected: torch.Tensor, precision: str) -> None:
    """Differences among texts, without what all have in common, which would hide an error."""
    error = (found - expected).norm() / (expected - expected.mean(0)).norm()
    assert 0 < float(error) < tolerance(precision)


@pytest.mark.parametrize("batch_tokens", [None, 300])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_vectors_of_fp32(
    family: str, precision: str, batch_tokens: int | None, tokenizer: Tokenizer, texts: list[str]
) -> None:
    encoder = build(family, **SETTINGS)
    expected = embed(encoder, tokenizer, texts, "cpu")
    found = embed(encoder, tokenizer, texts, "cuda", precision=precision, batch_tokens=batch_tokens, compile=False)
    if precision == "fp32":
        assert_rounded(found, expected, NUM_TERMS)
    else:
        assert_near(found, expected, precision)


@pytest.mark.parametrize(("family", "precision"), COMPILED)
def test_compiled_layers_give_the_vectors_of_fp32(
    family: str, precision: str, tokenizer: Tokenizer, texts: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    encoder = build(family, **SETTINGS)
    expected = embed(encoder, tokenizer, texts, "cpu")
    for batch_tokens in (None, 300):
        found = embed(encoder, tokenizer, texts, "cuda", precision=precision, batch_tokens=batch_tokens, compile=True)
        assert_near(found, expected, precision)
    assert not [one for one in recwarn if "the compiler cannot take" in str(one.message)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_scores_of_fp32(kind: str, precision: str, tokenizer: Tokenizer, texts: list[str]) -> None:
    asked = ask(kind, texts)
    encoder = build("bert", **SETTINGS)
    expected, found = (
        list_scores(build_pipeline(kind, copy.deepcopy(encoder), tokenizer, batch_tokens=400, **options)(asked))
        for options in ({}, {"device": "cuda", "precision": precision})
    )
    if precision == "fp32":
        assert_rounded(found, expected, NUM_TERMS, magnitude=1.0)
    else:
        assert float((found - expected).norm() / expected.norm()) < tolerance(precision)


def list_scores(answers: list[Any]) -> torch.Tensor:
    """Scores of the first answer to each input; places of words and classes may change where two are near."""
    firsts = [answer[0] if isinstance(answer, list) else answer for answer in answers]
    firsts = [first[0] if isinstance(first, list) else first for first in firsts]
    return torch.tensor([*list_numbers([one["score"] if isinstance(one, dict) else one for one in firsts])])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_masked_copies_have_the_likelihood_of_fp32(precision: str, tokenizer: Tokenizer, texts: list[str]) -> None:
    model = MaskedLanguageModel(build("bert", **SETTINGS), 160, tokenizer=tokenizer).eval()
    expected = score_texts(model, tokenizer, texts[:20]).log_likelihoods
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    found = score_texts(model.to("cuda", dtype), tokenizer, texts[:20]).log_likelihoods
    if precision == "fp32":
        assert_rounded(torch.from_numpy(found), torch.from_numpy(expected), NUM_TERMS, dtype=torch.float32)
    else:
        assert float(np.linalg.norm(found - expected) / np.linalg.norm(expected)) < tolerance(precision)


@pytest.fixture
def no_waiting() -> Iterator[Any]:
    """A function that has every operation fail that waits for the device."""
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_for_the_device(
    kind: str, precision: str, tokenizer: Tokenizer, texts: list[str], no_waiting: Any
) -> None:
    options = {"device": "cuda", "precision": precision, "batch_tokens": 400}
    built = build_pipeline(kind, build("bert", **SETTINGS), tokenizer, **options)
    asked = ask(kind, texts)
    expected = built(asked)
    no_waiting()
    found = built(asked)
    torch.cuda.set_sync_debug_mode("default")
    assert [*list_numbers(found)] == pytest.approx([*list_numbers(expected)])


def test_likelihood_waits_for_the_device_only_to_read_it(
    tokenizer: Tokenizer, texts: list[str], no_waiting: Any
) -> None:
    model = MaskedLanguageModel(build("bert", **SETTINGS), 160, tokenizer=tokenizer).eval().cuda().bfloat16()
    expected = score_texts(model, tokenizer, texts)
    no_waiting()
    found = score_texts(model, tokenizer, texts)
    torch.cuda.set_sync_debug_mode("default")
    assert found.log_likelihoods == pytest.approx(expected.log_likelihoods)


def test_answers_keep_their_order_over_many_batches(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = build("bert", **SETTINGS).cuda().bfloat16()
    distinct = list(dict.fromkeys(texts))
    built = pipeline("embed", encoder, tokenizer)
    built.batch_tokens = 1_000
    found = np.stack(built(distinct * 30)).reshape(30, len(distinct), -1)
    error = np.linalg.norm(found - found[0]) / np.linalg.norm(found - found.mean(1, keepdims=True))
    assert error < tolerance("bf16")
    centered = found - found[0].mean(0)
    centered /= np.linalg.norm(centered, axis=-1, keepdims=True)
    nearest = (centered @ centered[0].T).argmax(-1)
    assert (nearest == np.arange(len(distinct))).mean() > 0.95  # two may differ by less than bf16 shows


def test_compilation_that_is_impossible_is_refused(tokenizer: Tokenizer) -> None:
    encoder = build("bert", **SETTINGS)
    with pytest.raises(InputError, match="compile is true, and a BERT in float32 is not read in flat rows"):
        pipeline("embed", encoder, tokenizer, device="cuda", precision="fp32", compile=True)
    with pytest.raises(InputError, match="precision is fp8, which is for compiled layers"):
        pipeline("embed", encoder, tokenizer, device="cuda", precision="fp8", compile=False)


def test_auto_compiles_after_many_tokens(tokenizer: Tokenizer) -> None:
    built = pipeline("embed", build("bert", **SETTINGS), tokenizer, device="cuda", precision="bf16", compile="auto")
    assert not built.compilation.is_on
    assert "million tokens have been read" in str(built.compilation)
