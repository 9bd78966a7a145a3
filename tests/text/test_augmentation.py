from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.runs.texts import SampleKey, augment, augment_text
from maskwright.sections.data import AugmentationConfig

TEXT = " ".join(f"w{number}" for number in range(200))


def test_it_is_off_by_default() -> None:
    assert all(augment(TEXT, SampleKey(0, 0, sample), AugmentationConfig()) == TEXT for sample in range(50))


def test_about_the_asked_share_of_texts_and_words_is_touched() -> None:
    config = AugmentationConfig(probability=0.3, word_dropout=0.1)
    results = [augment(TEXT, SampleKey(1, 0, sample), config) for sample in range(600)]
    changed = [text.split() for text in results if text != TEXT]
    assert 0.25 < len(changed) / len(results) < 0.35
    assert 0.09 < 1 - sum(map(len, changed)) / (200 * len(changed)) < 0.11
    assert len({tuple(words) for words in changed}) == len(changed)


@given(
    text=st.text(st.sampled_from("ab \n"), max_size=60),
    seed=st.integers(0, 2**62),
    sample=st.integers(0, 2**40),
    dropout=st.floats(0, 1),
)
def test_words_are_lost_but_never_all_and_nothing_else_changes(
    text: str, seed: int, sample: int, dropout: float
) -> None:
    result = augment_text(text, SampleKey(seed, 3, sample), probability=1.0, dropout=dropout)
    rest = iter(text.split())
    assert all(word in rest for word in result.split())
    assert bool(result.split()) == bool(text.split())
    assert augment_text(text, SampleKey(seed, 3, sample), probability=1.0, dropout=dropout) == result


@pytest.mark.parametrize("other", [SampleKey(2, 5, 9), SampleKey(1, 6, 9), SampleKey(1, 5, 10)])
def test_seed_epoch_and_sample_each_decide(other: SampleKey) -> None:
    first = augment_text(TEXT, SampleKey(1, 5, 9), probability=1.0)
    assert first != TEXT
    assert augment_text(TEXT, other, probability=1.0) != first


def test_a_word_is_lost_by_its_place_whatever_follows() -> None:
    key = SampleKey(1, 5, 9)
    longer = augment_text(f"{TEXT} and more", key, probability=1.0).split()
    shorter = augment_text(TEXT, key, probability=1.0).split()
    assert longer[: len(shorter)] == shorter


def test_line_ends_between_kept_words_stay() -> None:
    text = "\n".join(["one two"] * 50)
    result = augment_text(text, SampleKey(0, 0, 0), probability=1.0, dropout=0.1)
    assert result != text
    assert result.count("\n") > 30
