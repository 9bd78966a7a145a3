from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from maskwright.batch import PackedBatch
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError

CLS, SEP, PAD = 1, 2, 0
VOCAB_SIZE = 500


def build_store(num_documents: int = 300, seed: int = 0) -> TokenStore:
    """Documents with lengths like those of sentences; a few are longer than a row."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(mean=3.0, sigma=0.6, size=num_documents), 2, 150).astype(int)
    return TokenStore.from_documents([random.integers(5, VOCAB_SIZE, length) for length in lengths], VOCAB_SIZE)


def build_loader(store: TokenStore | None = None, **settings: Any) -> PackedLoader:
    defaults: dict[str, Any] = {"row_length": 64, "rows_per_batch": 8, "seed": 3, "window": 120}
    return PackedLoader(
        store or build_store(), cls_token_id=CLS, sep_token_id=SEP, pad_token_id=PAD, **(defaults | settings)
    )


def sample_order(batches: list[PackedBatch]) -> list[int]:
    """The samples in the order of their [CLS]."""
    return [
        int(sample)
        for batch in batches
        for sample in batch.sample_ids[(batch.positions == 0) & (batch.document_ids > 0)]
    ]


def assert_equal(ours: list[PackedBatch], theirs: list[PackedBatch]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for name in ("input_ids", "document_ids", "positions", "sample_ids"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("shuffle", [True, False])
def test_each_sample_appears_exactly_once_per_epoch(shuffle: bool) -> None:
    loader = build_loader(shuffle=shuffle)
    for epoch in (0, 1):
        assert sorted(sample_order(list(loader.epoch(epoch)))) == list(range(len(loader.samples)))


def test_every_token_of_the_store_is_in_the_epoch() -> None:
    store = build_store()
    batches = list(build_loader(store).epoch(0))
    ids = torch.cat([batch.input_ids[batch.input_ids > SEP] for batch in batches])
    assert torch.equal(ids.sort().values, torch.from_numpy(np.sort(store.ids).astype(np.int64)))


def test_another_epoch_or_another_seed_has_another_order() -> None:
    loader = build_loader()
    order = sample_order(list(loader.epoch(0)))
    assert sample_order(list(loader.epoch(1))) != order
    assert sample_order(list(build_loader(seed=4).epoch(0))) != order


def test_the_same_seed_and_epoch_give_the_same_batches() -> None:
    assert_equal(list(build_loader().epoch(2)), list(build_loader().epoch(2)))


def test_shuffling_spreads_neighbouring_documents_over_the_epoch() -> None:
    store = build_store(1000)
    order = sample_order(list(build_loader(store, window=10_000).epoch(0)))
    gaps = np.abs(np.diff(order))
    assert gaps.mean() > len(order) / 5


def test_without_shuffling_every_epoch_is_the_same() -> None:
    loader = build_loader(shuffle=False)
    assert_equal(list(loader.epoch(0)), list(loader.epoch(5)))


@pytest.mark.parametrize("start_batch", [1, 4, 1000])
def test_starting_at_a_batch_equals_skipping_those_before_it(start_batch: int) -> None:
    loader = build_loader()
    assert_equal(list(loader.epoch(1, start_batch=start_batch)), list(loader.epoch(1))[start_batch:])


def test_iterating_goes_through_the_epochs_and_len_counts_the_next_one() -> None:
    loader = build_loader()
    for epoch in range(3):
        expected = list(loader.epoch(epoch))
        assert len(loader) == len(expected)
        assert_equal(list(loader), expected)


def test_a_batch_has_the_documents_laid_out_one_after_another() -> None:
    store = TokenStore.from_documents([[10, 11, 12], [20], [30, 31, 32, 33, 34]], VOCAB_SIZE)
    batch = build_loader(store, row_length=9).build_batch([[1, 0], [2]])
    assert batch.input_ids.tolist() == [
        [CLS, 20, SEP, CLS, 10, 11, 12, SEP, PAD],
        [CLS, 30, 31, 32, 33, 34, SEP, PAD, PAD],
    ]
    assert batch.document_ids.tolist() == [[1, 1, 1, 2, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3, 4, 0], [0, 1, 2, 3, 4, 5, 6, 0, 0]]
    assert batch.sample_ids.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0, 0], [2, 2, 2, 2, 2, 2, 2, 0, 0]]


def test_a_document_longer_than_a_row_becomes_several_samples() -> None:
    store = TokenStore.from_documents([list(range(10, 27))], VOCAB_SIZE)
    loader = build_loader(store, row_length=9, rows_per_batch=3, shuffle=False)
    (batch,) = loader.epoch(0)
    assert sorted(batch.input_ids.tolist()) == [
        [CLS, *range(10, 17), SEP],
        [CLS, *range(17, 24), SEP],
        [CLS, *range(24, 27), SEP, PAD, PAD, PAD, PAD],
    ]


def test_all_batches_have_the_same_shape_but_the_last() -> None:
    shapes = [tuple(batch.input_ids.shape) for batch in build_loader().epoch(0)]
    assert set(shapes[:-1]) == {(8, 64)}
    assert 1 <= shapes[-1][0] <= 8


def test_rows_are_nearly_full_on_sentence_like_lengths() -> None:
    loader = build_loader(build_store(3000), row_length=128, window=3000)
    rows = torch.cat([batch.is_padding for batch in loader.epoch(0)])
    share = float((~rows).float().mean())
    assert share >= 0.98
    assert loader.utilisation() == pytest.approx(share)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"row_length": 2}, "the row length is 2; it must be at least 3"),
        ({"rows_per_batch": 0}, "the rows per batch is 0"),
        ({"window": 0}, "the packing window is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        build_loader(**settings)


def test_a_store_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="the corpus holds no tokens"):
        build_loader(TokenStore.from_documents([[], []], VOCAB_SIZE))


def test_a_store_without_words_is_refused_where_words_are_asked_for():
    with pytest.raises(InputError, match="the tokens come without word boundaries"):
        build_loader(with_words=True)
