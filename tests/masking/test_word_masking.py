"""Whole-word masking: words are chosen whole, in the number asked for, whatever the batch around them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.batch import PackedBatch, as_packed, from_padded
from maskwright.errors import InputError
from maskwright.masking.strategies import WordMasker
from maskwright.masking.tokens import MAX_WORD_TOKENS, CorruptedBatch, TokenMasker, compute_num_slots

VOCAB_SIZE, MASK, SPECIALS = 500, 4, (0, 1, 2, 3, 4)
documents = st.lists(st.integers(1, 20), min_size=1, max_size=12)
rows_of_documents = st.lists(st.lists(documents, min_size=1, max_size=4), min_size=1, max_size=4)


def build_masker(**options) -> WordMasker:
    return WordMasker(VOCAB_SIZE, MASK, SPECIALS, **options)


def number(rows: list[list[list[int]]]) -> list[list[tuple[int, list[int]]]]:
    """Give every document a sample number of its own."""
    return [[(100 * row + place, sizes) for place, sizes in enumerate(docs)] for row, docs in enumerate(rows)]


def split_words(sizes: list[int], flags: list[bool]) -> list[list[bool]]:
    """The flags of each word, long words in pieces as they are cut."""
    words, place = [], 0
    for size in sizes:
        for begin in range(0, size, MAX_WORD_TOKENS):
            words.append(flags[place + begin : place + min(size, begin + MAX_WORD_TOKENS)])
        place += size
    return words


def chosen_by_document(corrupted: CorruptedBatch) -> dict[int, list[bool]]:
    """Which tokens between [CLS] and [SEP] were chosen, by sample."""
    found: dict[int, list[bool]] = {}
    batch = corrupted.batch
    fields = (batch.sample_ids, batch.document_ids, corrupted.selected)
    for samples, numbers, selected in zip(*(field.tolist() for field in fields), strict=True):
        tokens = [(s, flag) for s, n, flag in zip(samples, numbers, selected, strict=True) if n]
        for sample, group in groupby(tokens, key=lambda pair: pair[0]):
            found[sample] = [flag for _, flag in group][1:-1]
    return found


@settings(max_examples=80, deadline=None)
@given(
    rows=rows_of_documents,
    ratio=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**40),
    selection=st.sampled_from(["exact", "bernoulli"]),
)
def test_a_word_is_masked_whole_or_not_at_all(pack_words, rows, ratio, seed, selection):
    numbered = number(rows)
    corrupted = build_masker(selection=selection).corrupt(pack_words(numbered), ratio, seed, 0)
    chosen = chosen_by_document(corrupted)
    for sample, sizes in (document for row in numbered for document in row):
        assert len(chosen[sample]) == sum(sizes)
        assert all(len(set(word)) == 1 for word in split_words(sizes, chosen[sample]))
    assert (corrupted.labels[corrupted.selected] >= 10).all(), "a special token or padding was chosen"


@settings(max_examples=80, deadline=None)
@given(rows=rows_of_documents, ratio=st.floats(0.01, 1.0), seed=st.integers(0, 2**40))
def test_exact_selection_is_off_by_less_than_a_word(pack_words, rows, ratio, seed):
    numbered = number(rows)
    chosen = chosen_by_document(build_masker().corrupt(pack_words(numbered), ratio, seed, 0))
    for sample, sizes in (document for row in numbered for document in row):
        longest = min(MAX_WORD_TOKENS, max(sizes))
        assert abs(sum(chosen[sample]) - ratio * sum(sizes)) < longest + 1e-6


@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
@pytest.mark.parametrize("sizes", [[3, 1, 2, 5, 1, 1, 4], [30], [8, 1], [2]])
def test_the_expected_number_of_tokens_is_the_ratio(pack_words, selection, sizes):
    batch = pack_words([[(sample, sizes)] for sample in range(4000)])
    counts = build_masker(selection=selection).corrupt(batch, 0.3, 1, 0).selected.sum(dim=1).double()
    assert counts.mean().item() == pytest.approx(0.3 * sum(sizes), abs=5 * counts.std().item() / math.sqrt(4000))


def test_a_word_longer_than_the_quota_is_sometimes_masked_and_never_all_of_it(pack_words):
    """Thai, say: one word of 40 tokens, of which 6 are to be masked."""
    counts = [
        int(build_masker().corrupt(pack_words([[(7, [40])]]), 0.15, 0, epoch).selected.sum()) for epoch in range(60)
    ]
    assert set(counts) == {0, MAX_WORD_TOKENS}


def test_words_of_one_token_are_masked_as_tokens_are(pack_words):
    batch = pack_words(number([[[1] * 30, [1] * 17], [[1] * 40]]))
    for selection in ("exact", "bernoulli"):
        by_words = build_masker(selection=selection).corrupt(batch, 0.2, 3, 1)
        by_tokens = TokenMasker(VOCAB_SIZE, MASK, SPECIALS, selection=selection).corrupt(batch, 0.2, 3, 1)
        assert torch.equal(by_words.labels, by_tokens.labels)
        assert torch.equal(by_words.batch.input_ids, by_tokens.batch.input_ids)


@settings(max_examples=40, deadline=None)
@given(rows=rows_of_documents, seed=st.integers(0, 2**40), selection=st.sampled_from(["exact", "bernoulli"]))
def test_a_mask_depends_on_the_sample_alone(pack_words, rows, seed, selection):
    numbered = number(rows)
    masker = build_masker(selection=selection)
    packed = chosen_by_document(masker.corrupt(pack_words(numbered), 0.3, seed, 2))
    alone = [[document] for row in reversed(numbered) for document in row]
    assert chosen_by_document(masker.corrupt(pack_words(alone, length=300), 0.3, seed, 2)) == packed


def test_a_special_token_inside_a_word_divides_it(pack_words):
    batch = pack_words([[(sample, [5])] for sample in range(200)])
    ids = batch.input_ids.clone()
    ids[:, 3] = 3
    chosen = build_masker().corrupt(batch.with_input_ids(ids), 0.5, 0, 0).selected
    assert not chosen[:, 3].any()
    assert torch.equal(chosen[:, 1], chosen[:, 2])
    assert torch.equal(chosen[:, 4], chosen[:, 5])
    assert not torch.equal(chosen[:, 1], chosen[:, 4])


def test_words_end_with_their_document_even_where_no_start_is_marked(pack_words):
    batch = pack_words([[(2 * row, [3]), (2 * row + 1, [3])] for row in range(200)])
    chosen = build_masker(selection="bernoulli").corrupt(
        replace(batch, word_starts=torch.zeros_like(batch.word_starts)), 0.5, 0, 0
    )
    first, second = chosen.selected[:, 1:4], chosen.selected[:, 6:9]
    assert torch.equal(first.any(1), first.all(1))
    assert torch.equal(second.any(1), second.all(1))
    assert not torch.equal(first, second)


def test_every_chosen_token_can_become_mask():
    batch = as_packed({"input_ids": torch.arange(10, 40)[None], "word_ids": (torch.arange(30) // 3)[None]})
    corrupted = build_masker(random_token_ratio=0.0, unchanged_ratio=0.0).corrupt(batch, 1.0, 0, 0)
    assert (corrupted.batch.input_ids == MASK).all()


def test_padded_batches_tell_words_by_starts_or_by_numbers():
    ids = torch.arange(10, 22).view(2, 6)
    word_ids = torch.tensor([[0, 0, 1, 1, 1, 2], [-1, 0, 0, 1, 2, -1]])
    by_numbers = as_packed({"input_ids": ids, "word_ids": word_ids}).word_starts
    starts = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 1, 0, 1, 1, 1]])
    assert by_numbers.tolist() == starts.bool().tolist()
    assert as_packed({"input_ids": ids, "word_starts": starts}).word_starts.tolist() == starts.bool().tolist()


def test_a_batch_without_words_is_refused():
    with pytest.raises(InputError, match="does not say where words begin"):
        build_masker().corrupt(from_padded(torch.arange(10, 20)[None]), 0.15, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    ratio=st.floats(0.01, 1.0),
    selection=st.sampled_from(["exact", "bernoulli"]),
    seed=st.integers(0, 2**40),
)
def test_chosen_tokens_find_slots_even_where_all_words_are_long(pack_words, sizes, ratio, selection, seed):
    batch = pack_words([[(sample, sizes)] for sample in range(40)])
    corrupted = build_masker(selection=selection).corrupt(batch, ratio, seed, 0)
    assert int(corrupted.num_overflowing()) == 0
    assert corrupted.num_slots <= batch.input_ids.numel()


def test_overflow_is_counted():
    batch = from_padded(torch.arange(10, 30)[None])
    corrupted = TokenMasker(VOCAB_SIZE, MASK, SPECIALS).corrupt(batch, 1.0, 0, 0)
    overflowing = replace(corrupted, num_slots=13).num_overflowing()
    assert (int(overflowing), overflowing.ndim) == (7, 0)
    assert int(corrupted.num_overflowing()) == 0


def test_slots_leave_more_room_for_larger_units():
    assert compute_num_slots(8192, 0.15) < compute_num_slots(8192, 0.15, 8) < compute_num_slots(8192, 0.15, 80) < 8192


def test_known_word_masks_never_change(pack_words):
    """Frozen: a run must be repeatable by later versions."""
    batch: PackedBatch = pack_words([[(12345, [1, 3, 2, 1, 12, 1, 1, 2, 4, 1])]])
    corrupted = build_masker().corrupt(batch, 0.3, seed=42, epoch=3)
    assert corrupted.selected[0].nonzero().flatten().tolist() == KNOWN_PLACES
    assert corrupted.batch.input_ids[corrupted.selected].tolist() == KNOWN_IDS


KNOWN_PLACES = [2, 3, 4, 5, 6, 24, 25, 26, 27, 28]
KNOWN_IDS = [4, 4, 4, 14, 4, 4, 4, 4, 4, 4]
