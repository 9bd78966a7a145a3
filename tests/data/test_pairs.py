"""Pairs of segments: what they hold, that they are a function of (seed, epoch, sample), and how they are packed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.batch import IGNORED_LABEL, PackedBatch, concatenate
from maskwright.data.given_pairs import GivenPairs, PairStore, Segments, build_pair_loader
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import DOES_NOT_FOLLOW, FOLLOWS, build_pairing
from maskwright.data.shards import StoresInMemory
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.training.batches import take_share
from maskwright.training.distributed.world import World

CLS, SEP, PAD, FIRST_ID = 1, 2, 0, 5
SPECIAL_IDS = {"cls_token_id": CLS, "sep_token_id": SEP, "pad_token_id": PAD}
KINDS = ["nsp", "sop"]


def draw_lengths(num_documents: int, seed: int = 0) -> np.ndarray:
    """Lengths like those of sentences; a few are longer than a row, and some too short to cut."""
    random = np.random.default_rng(seed)
    return np.clip(random.lognormal(mean=3.0, sigma=0.6, size=num_documents), 2, 150).astype(int)


def build_store(num_documents: int = 300) -> TokenStore:
    """Every token of the corpus has an id of its own, so each can be found again."""
    ends = np.cumsum(draw_lengths(num_documents)) + FIRST_ID
    begins = [FIRST_ID, *ends[:-1]]
    documents = [np.arange(begin, end) for begin, end in zip(begins, ends, strict=True)]
    return TokenStore.from_documents(documents, int(ends[-1]))


def with_words(store: TokenStore, word_tokens: int = 3) -> TokenStore:
    """Documents of words of three tokens."""
    word_starts = np.concatenate([np.arange(length) % word_tokens == 0 for length in np.diff(store.offsets)])
    return TokenStore(store.ids, store.offsets, np.packbits(word_starts))


def build_loader(kind: str, store: TokenStore | None = None, **settings: Any) -> PackedLoader:
    defaults: dict[str, Any] = {"row_length": 64, "rows_per_batch": 8, "seed": 3, "window": 120}
    return PackedLoader(store or build_store(), pairing=build_pairing(kind), **SPECIAL_IDS, **(defaults | settings))


def read_documents(batches: list[PackedBatch]) -> dict[int, tuple[list[int], list[int], int]]:
    """Ids with special tokens, token types and label by sample."""
    found = {}
    for batch in batches:
        assert batch.token_type_ids is not None
        assert batch.pair_labels is not None
        for row in range(batch.num_rows):
            for document in range(1, int(batch.document_ids[row].max()) + 1):
                place = batch.document_ids[row] == document
                sample, label = (int(values[row][place][0]) for values in (batch.sample_ids, batch.pair_labels))
                assert batch.positions[row][place].tolist() == list(range(int(place.sum())))
                found[sample] = (batch.input_ids[row][place].tolist(), batch.token_type_ids[row][place].tolist(), label)
    return found


def split(ids: list[int]) -> list[list[int]]:
    """The segments between the special tokens."""
    ends = [place for place, token in enumerate(ids) if token == SEP]
    assert ids[0] == CLS
    assert ends[-1] == len(ids) - 1
    return [ids[begin + 1 : end] for begin, end in zip([0, *ends], ends, strict=False)]


def assert_equal(one: PackedBatch, other: PackedBatch) -> None:
    for field in fields(PackedBatch):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert (ours is None) == (theirs is None), field.name
        assert ours is None or torch.equal(ours, theirs), field.name


def document_of(store: TokenStore, token: int) -> int:
    return int(np.searchsorted(store.offsets, token - FIRST_ID, side="right"))


@pytest.mark.parametrize("kind", KINDS)
def test_token_types_are_0_up_to_the_first_separator_and_1_after_it(kind: str) -> None:
    num_pairs = 0
    for ids, types, label in read_documents(list(build_loader(kind).epoch(0))).values():
        segments = split(ids)
        assert types == [0] * (len(segments[0]) + 2) + [1] * (len(ids) - len(segments[0]) - 2)
        assert all(segments)
        num_pairs += len(segments) == 2
        assert (label in (FOLLOWS, DOES_NOT_FOLLOW)) == (len(segments) == 2)
    assert num_pairs > 250


@pytest.mark.parametrize("kind", KINDS)
def test_samples_too_short_to_cut_are_single_segments_without_a_label(kind: str) -> None:
    store = TokenStore.from_documents([[5], [6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]], 20)
    found = read_documents(list(build_loader(kind, store).epoch(0)))
    assert [len(split(found[sample][0])) for sample in range(4)] == [1, 1, 2, 2]
    assert [found[sample][2] == IGNORED_LABEL for sample in range(4)] == [True, True, False, False]


def test_sentence_order_shows_every_token_once_and_swaps_what_the_label_says() -> None:
    store = build_store()
    found = read_documents(list(build_loader("sop", store).epoch(0)))
    shown = sorted(token for ids, _, _ in found.values() for token in ids if token >= FIRST_ID)
    assert shown == store.ids.tolist()
    for ids, _, label in found.values():
        if label != IGNORED_LABEL:
            first, second = split(ids)
            early, late = (first, second) if label == FOLLOWS else (second, first)
            assert early[-1] + 1 == late[0]


def test_next_sentence_keeps_first_segments_and_takes_foreign_ones_from_other_documents() -> None:
    store = build_store()
    loader = build_loader("nsp", store)
    found = read_documents(list(loader.epoch(0)))
    firsts = [token for ids, _, _ in found.values() for token in split(ids)[0]]
    assert len(firsts) == len(set(firsts))
    for sample, (ids, _, label) in found.items():
        segments = split(ids)
        assert segments[0][0] == store.ids[loader.samples.starts[sample]]
        assert sum(map(len, segments)) == loader.samples.lengths[sample]
        if label == FOLLOWS:
            assert segments[0][-1] + 1 == segments[1][0]
        elif label == DOES_NOT_FOLLOW:
            assert document_of(store, segments[0][0]) != document_of(store, segments[1][0])
            assert segments[1] == list(range(segments[1][0], segments[1][-1] + 1))
            assert document_of(store, segments[1][0]) == document_of(store, segments[1][-1])


@pytest.mark.parametrize("kind", KINDS)
def test_about_half_of_the_pairs_follow(kind: str) -> None:
    found = read_documents(list(build_loader(kind, build_store(2000), rows_per_batch=64).epoch(0)))
    labels = [label for _, _, label in found.values() if label != IGNORED_LABEL]
    assert len(labels) > 1900
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / np.sqrt(len(labels))


def test_lengths_do_not_tell_foreign_segments_from_true_ones() -> None:
    found = read_documents(list(build_loader("nsp", build_store(2000), rows_per_batch=64).epoch(0)))
    shares: dict[int, list[float]] = {FOLLOWS: [], DOES_NOT_FOLLOW: []}
    for ids, _, label in found.values():
        if label != IGNORED_LABEL:
            first, second = split(ids)
            shares[label].append(len(second) / (len(first) + len(second)))
    assert abs(np.mean(shares[FOLLOWS]) - np.mean(shares[DOES_NOT_FOLLOW])) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_cuts_lie_in_the_middle_half_and_at_word_starts_where_known(kind: str) -> None:
    store = with_words(build_store())
    loader = build_loader(kind, store)
    num_inside = 0
    for sample, (ids, _, label) in read_documents(list(loader.epoch(0))).items():
        if label == IGNORED_LABEL:
            continue
        length = int(loader.samples.lengths[sample])
        segments = split(ids)
        own = segments[int(kind == "sop" and label == DOES_NOT_FOLLOW)]
        assert length // 4 <= len(own) < length - length // 4
        for segment in segments:
            offset = segment[0] - FIRST_ID - int(store.offsets[document_of(store, segment[0]) - 1])
            is_sample_start = segment[0] - FIRST_ID in loader.samples.starts
            num_inside += offset % 3 != 0 and not is_sample_start and length >= 12
    assert num_inside == 0


@pytest.mark.parametrize("kind", KINDS)
def test_word_starts_of_the_batch_are_those_of_its_tokens(kind: str) -> None:
    store = with_words(build_store())
    for batch in build_loader(kind, store, with_words=True).epoch(0):
        assert batch.word_starts is not None
        for row, column in (batch.input_ids >= FIRST_ID).nonzero().tolist():
            token = int(batch.input_ids[row, column])
            offset = token - FIRST_ID - int(store.offsets[document_of(store, token) - 1])
            assert bool(batch.word_starts[row, column]) == (offset % 3 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_do_not_depend_on_the_batch_the_rank_or_where_the_epoch_is_entered(kind: str) -> None:
    loader = build_loader(kind)
    batches = list(loader.epoch(2))
    whole = read_documents(batches)
    assert read_documents(list(build_loader(kind, rows_per_batch=3).epoch(2))) == whole
    assert read_documents([batch for rank in range(3) for batch in loader.for_rank(rank, 3).epoch(2)]) == whole
    for resumed, batch in zip(loader.epoch(2, start_batch=4), batches[4:], strict=True):
        assert_equal(resumed, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_each_epoch_and_seed_draws_other_pairs(kind: str) -> None:
    loader = build_loader(kind)
    first = read_documents(list(loader.epoch(0)))
    for other in (loader.epoch(1), build_loader(kind, seed=4).epoch(0)):
        pairs = read_documents(list(other))
        assert pairs.keys() == first.keys()
        assert sum(pairs[sample] != first[sample] for sample in first) > len(first) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_without_shuffling_pairs_are_the_same_in_every_epoch_and_run(kind: str) -> None:
    loader = build_loader(kind, shuffle=False)
    first = read_documents(list(loader.epoch(0)))
    assert read_documents(list(loader.epoch(1))) == first
    assert read_documents(list(build_loader(kind, shuffle=False, seed=9).epoch(0))) == first


def test_a_sample_shown_twice_in_an_epoch_is_paired_in_two_ways() -> None:
    shards = StoresInMemory([build_store()], weights=[2.0])
    loader = PackedLoader(
        shards, pairing=build_pairing("sop"), row_length=64, rows_per_batch=8, window=120, **SPECIAL_IDS
    )
    found = read_documents(list(loader.epoch(0)))
    num_samples = len(found) // 2
    both = [(found[sample], found[sample + (1 << 58)]) for sample in range(num_samples)]
    assert sum(one != other for one, other in both) > num_samples / 2


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_more_than_97_percent_full(kind: str) -> None:
    loader = build_loader(kind, build_store(3000), row_length=128, window=10_000, rows_per_batch=64)
    batches = list(loader.epoch(0))
    assert {batch.input_ids.shape[1] for batch in batches} == {128}
    filled = sum(batch.num_tokens() for batch in batches) / sum(batch.input_ids.numel() for batch in batches)
    assert filled > 0.97
    assert loader.utilisation() == pytest.approx(filled, abs=0.01)


class RememberingShards(StoresInMemory):
    """Keeps the number of rows for the next loader, as prepared shards do."""

    known: list[int] | None = None

    def row_counts(self, row_length: int, window: int) -> list[int] | None:
        return self.known

    def remember_row_counts(self, row_length: int, window: int, counts: list[int]) -> None:
        self.known = counts


def test_rows_remembered_for_plain_samples_are_not_taken_for_those_of_pairs() -> None:
    shards = RememberingShards([build_store()])
    options: dict[str, Any] = {"row_length": 64, "rows_per_batch": 8, "window": 120, **SPECIAL_IDS}
    plain = PackedLoader(shards, **options)
    loader = PackedLoader(shards, pairing=build_pairing("sop"), **options)
    assert len(read_documents(list(loader.epoch(0)))) == len(loader.samples)
    assert len(list(PackedLoader(shards, **options).epoch(0))) == len(plain)


def test_pair_labels_travel_with_the_batch_and_padding_rows_ask_nothing() -> None:
    batch = next(build_loader("sop").epoch(0)).rows(0, 3)
    assert batch.pair_labels is not None
    assert_equal(concatenate([batch.rows(0, 1), batch.to("cpu").rows(1, 3)]), batch)
    shares = [take_share(batch, World(rank, 2)) for rank in range(2)]
    assert [share.num_rows for share in shares] == [2, 2]
    assert torch.equal(shares[1].pair_labels[0], batch.pair_labels[1])
    assert bool((shares[1].pair_labels[1] == IGNORED_LABEL).all())


def test_a_rank_without_rows_gets_padding_that_asks_nothing() -> None:
    store = TokenStore.from_documents([list(range(5, 25))], 30)
    batch = next(build_loader("sop", store).for_rank(1, 2).epoch(0))
    assert batch.num_tokens() == 0
    assert bool((batch.pair_labels == IGNORED_LABEL).all())


def test_next_sentence_pairs_need_a_second_document() -> None:
    store = TokenStore.from_documents([list(range(5, 25))], 30)
    with pytest.raises(InputError, match=r"other documents, the corpus holds 1; .* sentence-order"):
        build_loader("nsp", store)


def test_pairs_without_another_document_long_enough_have_no_label() -> None:
    store = TokenStore.from_documents([list(range(5, 45)), [50, 51]], 60)
    ids, _, label = read_documents(list(build_loader("nsp", store).epoch(0)))[0]
    assert label == IGNORED_LABEL
    assert [token for segment in split(ids) for token in segment] == list(range(5, 45))


def test_rows_too_short_for_a_pair_and_unknown_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="row length is 6; it must be at least 7"):
        build_loader("sop", row_length=6)
    with pytest.raises(InputError, match="kind of pairs is 'order'; known are nsp"):
        build_pairing("order")  # type: ignore[arg-type]


def test_given_pairs_stay_pairs_and_have_no_label() -> None:
    pairs = [([10, 11, 12], [20]), ([30], [40, 41]), ([50, 51], [60, 61, 62])]
    loader = build_pair_loader(pairs, vocab_size=100, row_length=16, rows_per_batch=2, **SPECIAL_IDS)
    found = read_documents(list(loader.epoch(0)))
    assert [tuple(split(found[sample][0])) for sample in range(3)] == pairs
    assert {label for _, _, label in found.values()} == {IGNORED_LABEL}
    assert found[0][1] == [0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("lengths", "kept"), [((20, 3), (10, 3)), ((3, 20), (3, 10)), ((20, 20), (7, 6)), ((8, 20), (6, 7))]
)
def test_the_longer_segment_of_a_given_pair_is_cut_to_the_row(lengths: tuple[int, int], kept: tuple[int, int]) -> None:
    first, second = (list(range(10, 10 + length)) for length in lengths)
    loader = build_pair_loader([(first, second)], vocab_size=100, row_length=16, rows_per_batch=1, **SPECIAL_IDS)
    ids, _, _ = read_documents(list(loader.epoch(0)))[0]
    assert split(ids) == [first[: kept[0]], second[: kept[1]]]


def test_given_pairs_that_cannot_be_packed_are_refused() -> None:
    options: dict[str, Any] = {"row_length": 16, "rows_per_batch": 1, "pairing": GivenPairs(), **SPECIAL_IDS}
    with pytest.raises(InputError, match="pair 1 has a segment without tokens"):
        PairStore.from_pairs([([5], [6]), ([5], [])], 10, 13)
    with pytest.raises(InputError, match="do not say where second segments begin"):
        PackedLoader(TokenStore.from_documents([[5, 6]], 10), **options)
    with pytest.raises(InputError, match="a pair has 20 tokens, a row has room for 13"):
        PackedLoader(PairStore.from_pairs([([5] * 10, [6] * 10)], 10, 20), **options)


def build_segments(lengths: list[int], first_id: int) -> Segments:
    """Segments of ids of their own; every third token of a segment begins a word."""
    word_starts = np.concatenate([np.arange(length) % 3 == 0 for length in lengths])
    return Segments(np.arange(sum(lengths)) + first_id, np.asarray(lengths), word_starts)


def test_segments_apart_make_the_store_of_their_pairs() -> None:
    lengths = draw_lengths(400, seed=5)
    firsts, seconds = (
        build_segments(side.tolist(), base) for side, base in ((lengths[:200], 10), (lengths[200:], 20_000))
    )
    ends = [np.split(side.ids, np.cumsum(side.lengths)[:-1]) for side in (firsts, seconds)]
    expected = PairStore.from_pairs(zip(*ends, strict=True), 40_000, 40)
    store = PairStore.from_segments(firsts, seconds, 40_000, 40)
    for one, other in ((store.ids, expected.ids), (store.offsets, expected.offsets)):
        assert np.array_equal(one, other)
    assert np.array_equal(store.first_lengths, expected.first_lengths)
    assert store.num_cut == expected.num_cut == int((lengths[:200] + lengths[200:] > 40).sum()) > 20
    assert store.num_empty == 0


def test_word_starts_follow_their_tokens_into_given_pairs() -> None:
    store = PairStore.from_segments(build_segments([7, 2, 20], 10), build_segments([4, 5, 20], 50), 100, 13)
    loader = PackedLoader(store, row_length=16, rows_per_batch=4, pairing=GivenPairs(), with_words=True, **SPECIAL_IDS)
    num_checked = 0
    offsets = {10 + place: offset for place, offset in enumerate([*range(7), *range(2), *range(20)])}
    offsets |= {50 + place: offset for place, offset in enumerate([*range(4), *range(5), *range(20)])}
    for batch in loader.epoch(0):
        assert batch.word_starts is not None
        for token, is_start in zip(
            batch.input_ids.flatten().tolist(), batch.word_starts.flatten().tolist(), strict=True
        ):
            if token >= 10:
                assert is_start == (offsets[token] % 3 == 0)
                num_checked += 1
    assert num_checked == 11 + 7 + 13


def test_pairs_with_a_segment_without_tokens_are_left_out_and_counted() -> None:
    store = PairStore.from_segments(build_segments([2, 0, 3, 9], 10), build_segments([1, 9, 0, 9], 50), 100, 13)
    assert (store.num_documents, store.num_empty, store.num_cut) == (2, 2, 1)
    assert store.first_lengths.tolist() == [2, 7]
    assert store.ids.tolist() == [10, 11, 50, *range(15, 22), *range(60, 66)]
    assert np.diff(store.offsets).tolist() == [3, 13]


def test_no_pairs_at_all_make_an_empty_store() -> None:
    store = PairStore.from_pairs([], 100, 13)
    assert (store.num_documents, store.num_tokens) == (0, 0)
