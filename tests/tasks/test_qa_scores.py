"""SQuAD's scores; expected values are those of the official functions in transformers 4.57."""

from __future__ import annotations

import random

import pytest

from maskwright.tasks.qa.question_answering import Reply, normalise_answer, score_replies, score_text


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  U.S.", "us"),
        ("a cat, an owl & THE dog", "cat owl dog"),
        ("co-op", "coop"),
        ("Theatre «x»", "theatre «x»"),
        ("the", ""),
    ],
)
def test_case_punctuation_articles_and_blanks_do_not_count(text: str, normal: str) -> None:
    assert normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("text", "gold", "exact", "f1"),
    [
        ("co-op The", ("co-op The", "a dog, U.S.", ""), 1, 1.0),
        ("«x»", ("naïve 猫 the «x»", ""), 0, 0.5),
        ("the cat saw the cat", ("cat",), 0, 0.5),
        ("the cat saw", ("a dog", "cat saw him"), 0, 0.8),
        ("1,000", ("1000", "an -"), 1, 1.0),
        ("dog", (), 0, 0.0),
        ("", (), 1, 1.0),
        ("an", (), 1, 1.0),
        ("", ("dog,",), 0, 0.0),
        ("-", ("a", "", "co-op"), 0, 0.0),
    ],
)
def test_a_text_is_scored_against_the_answer_that_suits_it_best(
    text: str, gold: tuple[str, ...], exact: float, f1: float
) -> None:
    assert score_text(text, gold) == (exact, pytest.approx(f1))


def test_where_every_question_has_an_answer_one_is_always_given() -> None:
    scores = score_replies([Reply("cat", 9.0, ("cat",)), Reply("a dog", -1.0, ("dog house",))])
    assert scores == {"exact": 0.5, "f1": pytest.approx((1 + 2 / 3) / 2), "questions": 2}


def test_unanswerable_questions_have_scores_of_their_own() -> None:
    replies = [
        Reply("cat", -2.0, ("cat",)),
        Reply("dog", 1.0, ("dog",)),
        Reply("owl", 3.0, ()),
        Reply("fox", -1.0, ()),
    ]
    scores = score_replies(replies)
    assert scores["exact"] == scores["f1"] == 0.5
    assert scores["has_answer_exact"] == scores["has_answer_f1"] == scores["no_answer_exact"] == 0.5
    assert (scores["best_f1"], scores["best_f1_threshold"]) == (0.75, -2.0)


def test_the_best_threshold_is_no_worse_than_any_other() -> None:
    generator = random.Random(3)
    replies = [
        Reply(
            generator.choice("abc") + "x",
            generator.gauss(0, 1),
            (generator.choice("abc") + "x",) * generator.randrange(2),
        )
        for _ in range(60)
    ]

    def score(threshold: float) -> float:
        shifted = [Reply(one.text, one.margin - threshold, one.gold) for one in replies]
        return score_replies(shifted)["exact"]

    scores = score_replies(replies)
    assert scores["best_exact"] == pytest.approx(max(score(one.margin) for one in replies))
    assert score(scores["best_exact_threshold"]) == pytest.approx(scores["best_exact"])


def test_a_file_of_unanswerable_questions_is_scored_by_silence() -> None:
    scores = score_replies([Reply("cat", 1.0, ()), Reply("dog", -1.0, ())])
    assert "has_answer_f1" not in scores
    assert (scores["exact"], scores["no_answer_exact"], scores["best_exact"]) == (0.5, 0.5, 1.0)
