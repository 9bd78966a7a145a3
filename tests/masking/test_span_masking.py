"""Span masking: runs of whole words, of the lengths asked for, within one document."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.errors import InputError
from maskwright.masking.strategies import SpanMasker
from maskwright.masking.tokens import MAX_WORD_TOKENS, CorruptedBatch

VOCAB_SIZE, MASK, SPECIALS = 500, 4, (0, 1, 2, 3, 4)
documents = st.lists(st.integers(1, 4), min_size=1, max_size=30)
rows_of_documents = st.lists(st.lists(documents, min_size=1, max_size=4), min_size=1, max_size=3)


def build_masker(**options) -> SpanMasker:
    return SpanMasker(VOCAB_SIZE, MASK, SPECIALS, **options)


def number(rows: list[list[list[int]]]) -> list[list[tuple[int, list[int]]]]:
    return [[(100 * row + place, sizes) for place, sizes in enumerate(docs)] for row, docs in enumerate(rows)]


def chosen_words(corrupted: CorruptedBatch, sample: int, sizes: list[int]) -> list[set[bool]]:
    """For each word of a document, whether its tokens were chosen."""
    is_its = (corrupted.batch.sample_ids == sample) & (corrupted.batch.document_ids > 0)
    flags = corrupted.selected[is_its].tolist()[1:-1]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [set(flags[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def run_lengths(flags: list[bool]) -> list[int]:
    runs = "".join("x" if flag else " " for flag in flags).split()
    return [len(run) for run in runs]


@settings(max_examples=80, deadline=None)
@given(
    rows=rows_of_documents,
    ratio=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**40),
    p=st.floats(0.05, 1.0),
    max_words=st.integers(1, 12),
)
def test_spans_are_whole_words_within_the_bound_of_the_ratio(pack_words, rows, ratio, seed, p, max_words):
    numbered = number(rows)
    corrupted = build_masker(span_p=p, span_max_words=max_words).corrupt(pack_words(numbered), ratio, seed, 0)
    assert (corrupted.labels[corrupted.selected] >= 10).all(), "a special token or padding was chosen"
    assert int(corrupted.num_overflowing()) == 0
    for sample, sizes in (document for row in numbered for document in row):
        words = chosen_words(corrupted, sample, sizes)
        assert all(len(word) == 1 for word in words)
        num_chosen = sum(size for size, word in zip(sizes, words, strict=True) if word == {True})
        assert abs(num_chosen - ratio * sum(sizes)) < max(sizes) + 1e-6


@settings(max_examples=40, deadline=None)
@given(rows=rows_of_documents, seed=st.integers(0, 2**40), selection=st.sampled_from(["exact", "bernoulli"]))
def test_a_mask_depends_on_the_sample_alone(pack_words, rows, seed, selection):
    """So no span can reach into another document, either."""
    numbered = number(rows)
    masker = build_masker(selection=selection)
    together = masker.corrupt(pack_words(numbered), 0.3, seed, 2)
    apart = masker.corrupt(
        pack_words([[document] for row in reversed(numbered) for document in row], 150), 0.3, seed, 2
    )
    for sample in (sample for row in numbered for sample, _ in row):
        for field in ("labels", "input_ids"):
            first, second = (
                (part.labels if field == "labels" else part.batch.input_ids)[
                    (part.batch.sample_ids == sample) & (part.batch.document_ids > 0)
                ]
                for part in (together, apart)
            )
            assert torch.equal(first, second)


def draw_lengths(pack_words, p: float, max_words: int) -> Counter[int]:
    """Lengths of single spans: with few of them chosen, hardly any touch."""
    batch = pack_words([[(sample, [1] * 100)] for sample in range(3000)])
    masker = build_masker(selection="bernoulli", span_p=p, span_max_words=max_words)
    chosen = masker.corrupt(batch, 0.01, 5, 0).selected[:, 1:-11]
    return Counter(length for row in chosen.tolist() for length in run_lengths(row))


@pytest.mark.parametrize(("p", "max_words", "mean"), [(0.2, 10, 3.797), (0.5, 3, 11 / 7), (1.0, 5, 1.0), (0.3, 1, 1.0)])
def test_lengths_are_geometric_with_the_paper_s_mean(pack_words, p, max_words, mean):
    counts = draw_lengths(pack_words, p, max_words)
    total = sum(counts.values())
    weights = [p * (1 - p) ** (length - 1) for length in range(1, max_words + 1)]
    assert sum((place + 1) * weight for place, weight in enumerate(weights)) / sum(weights) == pytest.approx(mean, 1e-3)
    for length in range(1, max_words + 1):
        share = weights[length - 1] / sum(weights)
        # Some touch, and one in a hundred spans is cut at the edge of the rows.
        assert counts[length] / total == pytest.approx(share, abs=0.015 + 5 * math.sqrt(share * (1 - share) / total))


@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
def test_the_expected_number_of_tokens_is_the_ratio(pack_words, selection):
    sizes = [2, 1, 1, 3, 1, 6, 1, 1, 2, 1, 1, 4]
    batch = pack_words([[(sample, sizes)] for sample in range(4000)])
    counts = build_masker(selection=selection).corrupt(batch, 0.2, 1, 0).selected.sum(dim=1).double()
    assert counts.mean().item() == pytest.approx(0.2 * sum(sizes), abs=5 * counts.std().item() / math.sqrt(4000))


def test_spans_are_longer_than_chance_would_make_them(pack_words):
    batch = pack_words([[(sample, [1] * 120)] for sample in range(200)])
    chosen = build_masker().corrupt(batch, 0.15, 0, 0).selected
    lengths = [length for row in chosen.tolist() for length in run_lengths(row)]
    assert sum(lengths) == 200 * 18
    assert 3.0 < sum(lengths) / len(lengths) < 4.6


def test_a_span_has_one_fate(pack_words):
    batch = pack_words([[(sample, [1] * 60)] for sample in range(300)])
    masker = build_masker(random_token_ratio=0.0, unchanged_ratio=0.5, span_p=0.01, span_max_words=10)
    corrupted = masker.corrupt(batch, 0.1, 0, 0)
    is_mask = corrupted.batch.input_ids == MASK
    both = corrupted.selected[:, 1:] & corrupted.selected[:, :-1]
    same = (is_mask[:, 1:] == is_mask[:, :-1])[both].float().mean()
    assert same > 0.9
    assert 0.4 < is_mask[corrupted.selected].float().mean() < 0.6


def test_a_special_token_divides_a_span(pack_words):
    batch = pack_words([[(sample, [1] * 9)] for sample in range(400)])
    ids = batch.input_ids.clone()
    ids[:, 5] = 3
    masker = build_masker(selection="bernoulli", span_p=1e-6, span_max_words=100)
    chosen = masker.corrupt(batch.with_input_ids(ids), 0.5, 0, 0).selected
    assert not chosen[:, 5].any()
    assert 0.3 < (chosen[:, 4] != chosen[:, 6]).float().mean() < 0.7


def test_text_without_spaces_is_masked_in_pieces(pack_words):
    batch = pack_words([[(sample, [120])] for sample in range(100)])
    counts = build_masker().corrupt(batch, 0.15, 0, 0).selected.sum(dim=1)
    assert set(counts.tolist()) == {2 * MAX_WORD_TOKENS, 3 * MAX_WORD_TOKENS}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"span_p": 0.0}, r"span_p is 0\.0; it must lie in \(0, 1\]"),
        ({"span_p": 1.5}, r"span_p is 1\.5; it must lie in \(0, 1\]"),
        ({"span_max_words": 0}, "span_max_words is 0; it must be at least 1"),
    ],
)
def test_impossible_lengths_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        build_masker(**options)


def test_known_span_masks_never_change(pack_words):
    """Frozen: a run must be repeatable by later versions."""
    batch = pack_words([[(7, [1, 2]), (12345, [1, 3, 2, 1, 12, 1, 1, 2, 4, 1] * 2)]])
    corrupted = build_masker().corrupt(batch, 0.3, seed=42, epoch=3)
    assert corrupted.selected[0].nonzero().flatten().tolist() == KNOWN_PLACES
    assert corrupted.batch.input_ids[corrupted.selected].tolist() == KNOWN_IDS


KNOWN_PLACES = [1, 33, 34, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54]
KNOWN_IDS = [192, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
