"""Tokenizers learnt from counts of words are those that the library learns from the texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.errors import InputError
from maskwright.text.sources import read_python_documentation
from maskwright.text.tokenizer.counted import balance_counts, check_sample, count_words, is_sampled, train_on_counts
from maskwright.text.tokenizer.train import build_plan, train_tokenizer

TYPES = ["wordpiece", "byte_level_bpe", "word_level", "character"]


def both(texts: list[str], type: str, vocab_size: int, min_frequency: int = 2, lowercase: bool = True) -> list[str]:
    plan = build_plan(vocab_size, lowercase, min_frequency, ["[MINE]"])
    words = count_words(texts, type, lowercase)
    counted = train_on_counts(dict(random.Random(0).sample(sorted(words.items()), len(words))), type, plan)
    usual = train_tokenizer(texts, type, vocab_size, lowercase, min_frequency, special_tokens=["[MINE]"])  # type: ignore[arg-type]
    return [counted.backend.to_str(), usual.backend.to_str()]


@pytest.mark.parametrize(
    ("type", "vocab_size", "min_frequency", "lowercase"),
    [
        ("wordpiece", 3000, 2, True),
        pytest.param("wordpiece", 100_000, 20, False, marks=pytest.mark.slow),
        pytest.param("byte_level_bpe", 3000, 2, True, marks=pytest.mark.slow),
        ("byte_level_bpe", 100_000, 20, False),
        ("word_level", 3000, 2, True),
        ("word_level", 100_000, 20, False),
    ],
)
def test_real_text_gives_the_same_tokenizer(type: str, vocab_size: int, min_frequency: int, lowercase: bool) -> None:
    texts = read_python_documentation()[:700]
    counted, usual = both(texts, type, vocab_size, min_frequency, lowercase)
    assert counted == usual


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text("abcé ##漢\n", max_size=30), min_size=1, max_size=8), type=st.sampled_from(TYPES[::2]))
def test_repetitive_text_gives_the_same_tokenizer(texts: list[str], type: str) -> None:
    """Words such as `aaaa`, in which pairs overlap, and pieces that are made in two ways."""
    texts = [*texts, "ab ab"]
    counted, usual = both(texts, type, 60, 1)
    assert counted == usual


def test_a_sample_is_a_share_of_the_texts_that_the_seed_chooses() -> None:
    texts = [f"text {number}" for number in range(4000)]
    samples = [{text for text in texts if is_sampled(text, 0.25, seed)} for seed in (0, 1)]
    # five standard deviations of a binomial count
    assert all(abs(len(sample) - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5 for sample in samples)
    assert abs(len(samples[0] & samples[1]) - 250) < 5 * (4000 / 16) ** 0.5
    assert samples[0] < {text for text in texts if is_sampled(text, 0.5, 0)}
    assert all(is_sampled(text, 1.0, 3) for text in texts)
    for share, seed in ((0.0, 0), (1.5, 0), (0.5, -1)):
        with pytest.raises(InputError):
            check_sample(share, seed)


def test_balanced_sources_count_by_their_size_to_a_power() -> None:
    large, small = {"aa": 900, "b": 200}, {"aa": 10, "cc": 40}
    assert balance_counts([large, small, {}], 1.0) == {"aa": 910, "b": 200, "cc": 40}
    balanced = balance_counts([large, small], 0.5)
    sizes, total = (2000, 100), 2100
    shares = [size**0.5 / sum(one**0.5 for one in sizes) for size in sizes]
    factors = [share * total / size for share, size in zip(shares, sizes, strict=True)]
    assert balanced["b"] == round(200 * factors[0])
    assert balanced["cc"] == round(40 * factors[1])
    assert balanced["aa"] == round(900 * factors[0]) + round(10 * factors[1])
    with pytest.raises(InputError, match=r"it must lie in \[0, 1\]"):
        balance_counts([large], 1.5)
