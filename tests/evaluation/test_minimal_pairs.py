from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.errors import InputError
from maskwright.evaluation.likelihood import score_texts
from maskwright.evaluation.minimal_pairs import MinimalPair, judge_pairs, read_pairs
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

Write = Callable[..., str]
RECORD = {
    "sentence_good": "the cat sees.",
    "sentence_bad": "the cat see.",
    "field": "syntax",
    "linguistics_term": "agreement",
    "UID": "agreement_1",
    "pairID": "0",
}
PAIR = MinimalPair("the cat sees.", "the cat see.", "agreement_1", "agreement", "syntax")


def test_the_fields_of_blimp_are_read(write_jsonl: Write) -> None:
    assert read_pairs([write_jsonl([RECORD, RECORD])]) == [PAIR, PAIR]


def test_several_files_a_folder_and_a_glob_are_read_in_order(write_jsonl: Write, tmp_path: Path) -> None:
    files = [write_jsonl([RECORD | {"UID": name}], f"{name}.jsonl") for name in ("second", "first")]
    assert [pair.paradigm for pair in read_pairs(files)] == ["second", "first"]
    assert [pair.paradigm for pair in read_pairs([str(tmp_path)])] == ["first", "second"]
    assert [pair.paradigm for pair in read_pairs([str(tmp_path / "s*.jsonl")])] == ["second"]


def test_groups_that_are_not_named_are_called_like_the_file(write_jsonl: Write) -> None:
    bare = {name: RECORD[name] for name in ("sentence_good", "sentence_bad")}
    (pair,) = read_pairs([write_jsonl([bare], "mine.jsonl")])
    assert (pair.paradigm, pair.phenomenon, pair.field) == ("mine", "mine", "mine")


@pytest.mark.parametrize(
    ("second", "complaint"),
    [
        ({"good": "a", "bad": "b"}, r"items\.jsonl:2 has no field 'sentence_good'; its fields are 'good', 'bad'"),
        (RECORD | {"sentence_bad": " "}, r"'sentence_bad' of .*items\.jsonl:2 is empty"),
        (RECORD | {"sentence_bad": 3}, r"'sentence_bad' of .*items\.jsonl:2 holds a int"),
        (RECORD | {"sentence_bad": "\ud800"}, r"items\.jsonl:2 holds half of a surrogate pair"),
        (RECORD | {"UID": None}, r"'UID' of .*items\.jsonl:2 holds a NoneType"),
        (["no", "object"], r"items\.jsonl:2 holds a list"),
    ],
)
def test_a_line_that_is_no_pair_is_named(write_jsonl: Write, second: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_pairs([write_jsonl([RECORD, second])])


@pytest.mark.parametrize(
    ("content", "name", "complaint"),
    [
        (b"{", "x.jsonl", r"x\.jsonl:1 is not JSON"),
        (b'{"a": "\xff"}\n', "x.jsonl", r"x\.jsonl:1 is not valid UTF-8"),
        (b"\n\n", "x.jsonl", "holds no record"),
        (b"", "x.jsonl", "holds no record"),
        (b"a\tb\n", "x.tsv", r"x\.tsv is no \.jsonl file"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: bytes, name: str, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_pairs([str(tmp_path / name)])


def test_points_follow_the_scores_and_a_tie_is_half(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    texts = ["the cat sees the road.", "a dog likes it.", "every river"]
    order = np.argsort(score_texts(small_model, tokenizer, texts).log_likelihoods)
    worst, _, best = (texts[number] for number in order)
    pairs = [MinimalPair(good, bad, "", "", "") for good, bad in ((best, worst), (worst, best), (best, best))]
    assert judge_pairs(small_model, tokenizer, pairs).points.tolist() == [1.0, 0.0, 0.5]


def test_a_pair_of_which_one_sentence_is_too_long_does_not_fit(
    small_model: MaskedLanguageModel, tokenizer: Tokenizer
) -> None:
    long = "the cat " * 30
    pairs = [MinimalPair(good, bad, "", "", "") for good, bad in ((long, "one"), ("one", long), ("one", "the"))]
    assert judge_pairs(small_model, tokenizer, pairs).fits.tolist() == [False, False, True]


def test_a_published_file_is_read(published_files: Path) -> None:
    pairs = read_pairs([str(published_files / "blimp" / "passive_1.jsonl")])
    assert len(pairs) == 1000
    assert {(pair.paradigm, pair.phenomenon, pair.field) for pair in pairs} == {
        ("passive_1", "argument_structure", "syntax")
    }
