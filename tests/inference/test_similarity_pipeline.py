"""The cosine of two texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import NUM_TERMS

from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from tolerances import rounding

PAIRS = [("the cat sees", "a small dog"), ("one", "one"), ("the quiet river " * 20, "the cat"), ("a", "b " * 60)]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_scores_are_cosines_of_the_embeddings(bert_folder: Path, pooling: str) -> None:
    embed = pipeline("embed", bert_folder, device="cpu", pooling=pooling, normalize=True)
    scores = pipeline("similarity", bert_folder, device="cpu", pooling=pooling)(PAIRS)
    for (first, second), score in zip(PAIRS, scores, strict=True):
        assert set(score) == {"score"}
        assert score["score"] == pytest.approx(float(np.dot(embed(first), embed(second))), abs=rounding(NUM_TERMS))
    assert scores[1]["score"] == pytest.approx(1.0, abs=rounding(NUM_TERMS))


def test_one_pair_has_one_score(bert_folder: Path) -> None:
    ours = pipeline("similarity", bert_folder, device="cpu")
    assert ours(PAIRS[0])["score"] == pytest.approx(ours([list(PAIRS[0])])[0]["score"])


def test_an_empty_text_of_a_pair_is_none_and_of_one_alone_is_named(bert_folder: Path) -> None:
    ours = pipeline("similarity", bert_folder, device="cpu")
    with pytest.warns(InputWarning, match="^2 of 3 pairs have no text; their answer is None$"):
        assert [answer is None for answer in ours([("a", ""), ("a", "b"), (None, "b")])] == [True, False, True]
    with pytest.raises(InputError, match=r"^the second text of pair 1 is empty"):
        ours(("a", ""))


@pytest.mark.parametrize("inputs", ["text", ["text", "text"], [("a",)], [("a", 3)], 3], ids=str)
def test_what_is_no_pair_is_refused(bert_folder: Path, inputs: Any) -> None:
    with pytest.raises(InputError, match="expected a pair of texts"):
        pipeline("similarity", bert_folder, device="cpu")(inputs)


def test_texts_of_many_vectors_are_not_compared(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="pooling is none"):
        pipeline("similarity", bert_folder, pooling="none")
