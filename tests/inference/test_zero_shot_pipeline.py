"""Labels that were never learnt, asked as hypotheses; the same answers as transformers' zero-shot-classification."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sequence_lab import MAX_LENGTH, save_classifier
from tiny_models import SCORE_ERROR

from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import rounding

LABELS = ["the cat", "a house", "rain"]
TEXTS = ["the dog", "a road.", "one red bird"]
NLI = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
Build = Callable[..., Path]


@pytest.fixture
def build_nli(tokenizer: Tokenizer, tmp_path: Path) -> Build:
    def build(names: list[str] = NLI, **settings: Any) -> Path:
        return save_classifier(tmp_path / "nli", tokenizer, names, max_position_embeddings=2 * MAX_LENGTH, **settings)

    return build


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("labels", [LABELS, LABELS[:1], "the cat, rain"], ids=["several", "one", "commas"])
@pytest.mark.parametrize(
    "names",
    [NLI, pytest.param(["entailment", "neutral", "contradiction"], marks=pytest.mark.slow), ["not", "entails"]],
    ids=str,
)
def test_answers_are_those_of_transformers(build_nli: Build, multi_label: bool, labels: Any, names: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    folder = build_nli(names)
    hypothesis = "this sees {}."
    theirs = transformers.pipeline("zero-shot-classification", str(folder), device="cpu")(
        TEXTS, candidate_labels=labels, hypothesis_template=hypothesis, multi_label=multi_label
    )
    options = {"labels": labels, "hypothesis": hypothesis, "multi_label": multi_label}
    ours = pipeline("zero-shot", folder, device="cpu", **options)(TEXTS)
    assert len(ours) == len(theirs) == len(TEXTS)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other) == ["sequence", "labels", "scores"]
        assert (one["sequence"], one["labels"]) == (other["sequence"], other["labels"])
        assert one["scores"] == pytest.approx(other["scores"], abs=SCORE_ERROR)


def test_scores_of_labels_add_up_to_one_only_where_they_exclude_each_other(build_nli: Build) -> None:
    folder = build_nli()
    answer = pipeline("zero-shot", folder, labels=LABELS)(TEXTS[0])
    assert sum(answer["scores"]) == pytest.approx(1.0, abs=rounding(len(LABELS)))
    assert answer["scores"] == sorted(answer["scores"], reverse=True)
    assert sum(pipeline("zero-shot", folder, labels=LABELS, multi_label=True)(TEXTS[0])["scores"]) != pytest.approx(1.0)


def test_a_long_text_is_read_in_windows_with_the_whole_hypothesis(build_nli: Build) -> None:
    ours = pipeline("zero-shot", build_nli(), labels=["cat", "dog"], hypothesis="a {}", device="cpu")
    (prepared,) = ours.kind.prepare(["one red bird sees the green house " * 30], str)
    assert len(prepared.counts) == 2
    assert min(prepared.counts) > 3
    seconds = {
        tuple(token for token, segment in zip(sample.ids, sample.token_type_ids, strict=True) if segment)
        for sample in prepared.samples
    }
    assert len(seconds) == 2
    assert set(ours("one red bird sees the green house " * 30)["labels"]) == {"cat", "dog"}


def test_a_model_that_knows_no_entailment_is_refused_with_its_classes(build_nli: Build) -> None:
    with pytest.raises(InputError, match=r"tells 'good', 'bad' apart.*'entail'.*natural language inference"):
        pipeline("zero-shot", build_nli(["good", "bad"]), labels=LABELS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"hypothesis": "this is it", "labels": LABELS}, r"'this is it' has no \{\}"),
        ({}, "needs at least one label"),
        ({"labels": []}, "needs at least one label"),
        ({"labels": ["a", " "]}, "needs at least one label, each a text that is not empty"),
        ({"labels": ["a", 3]}, "each a text"),
        ({"labels": ["a", "a"]}, "give each label once"),
        ({"labels": LABELS, "top_k": 3}, "zero-shot has no option 'top_k'"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(build_nli: Build, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pipeline("zero-shot", build_nli(), **options)


def test_an_empty_text_of_several_is_none_and_one_alone_is_named(build_nli: Build) -> None:
    ours = pipeline("zero-shot", build_nli(), labels=LABELS)
    with pytest.warns(InputWarning, match="^1 of 3 texts"):
        assert [answer is None for answer in ours(["a", "", "b"])] == [False, True, False]
    with pytest.raises(InputError, match=r"^text 1 is empty"):
        ours("")


def test_a_measure_is_no_answer_to_labels(build_nli: Build) -> None:
    with pytest.raises(InputError, match=r"fine-tuned for Regression, and Classification is needed"):
        pipeline("zero-shot", build_nli(["entailment"], problem_type="regression"), labels=LABELS)
