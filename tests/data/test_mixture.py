"""Sources mixed by temperature: their shares, late ones, no row twice too early, and any stretch at any time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.data.loader import PackedLoader
from maskwright.data.mixture import MOST_PASSES, MixedOrder, MixingSource, Mixture
from maskwright.data.shards import StoresInMemory
from maskwright.data.store import TokenStore

SIZES = [900, 90, 10]


def mix(sizes=SIZES, phases=((1.0, 0.5),), starts=(0.0, 0.0, 0.0), epochs=4, shard_sources=None, **options):
    sources = [MixingSource(f"source {number}", start=start) for number, start in enumerate(starts)]
    return Mixture(sources, shard_sources or range(len(sizes)), phases, epochs * sum(sizes), **options)


def list_rows(order: MixedOrder) -> list[tuple[int, int, int]]:
    return list(map(tuple, order.locate(0, order.num_rows).T.tolist()))


def count(mixture, sizes=SIZES, epoch=0):
    shards = MixedOrder(sizes, mixture, seed=1, epoch=epoch).locate(0, 10**9)[0]
    return np.bincount(shards, minlength=len(sizes)) / len(shards)


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.0])
def test_shares_are_sizes_to_the_power_of_alpha(alpha):
    wanted = np.array(SIZES) ** alpha
    found = count(mix(phases=((1.0, alpha),)))
    assert found == pytest.approx(wanted / wanted.sum(), abs=2 / 1000)  # each is rounded by a row


def test_phases_change_shares_where_they_end_and_sources_join_at_their_start():
    mixture = mix(phases=((0.5, 1.0), (1.0, 0.0)), starts=(0.0, 0.0, 0.75))
    expected = [[10 / 11, 1 / 11, 0], [10 / 11, 1 / 11, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]
    for epoch, shares in enumerate(expected):
        assert count(mixture, epoch=epoch) == pytest.approx(shares, abs=3 / 1000)
    within = mix(phases=((0.5, 1.0), (1.0, 0.0)), epochs=1)
    shards = MixedOrder(SIZES, within, seed=0, epoch=0).locate(0, 1000)[0]
    assert (shards[:500] == 0).mean() == pytest.approx(0.9, abs=0.01)
    assert (shards[501:] == 0).mean() == pytest.approx(1 / 3, abs=0.01)


def test_no_row_comes_again_before_all_of_its_source_came():
    sizes, owners = [40, 25, 7], [0, 0, 1]
    mixture = mix(sizes, ((0.4, 1.0), (1.0, 0.2)), (0.0, 0.0), epochs=5, shard_sources=owners)
    streams: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    for epoch in range(5):
        order = MixedOrder(sizes, mixture, seed=3, epoch=epoch)
        for block in range(len(order._blocks)):  # within a block sources are shuffled
            for source, (first, last) in enumerate(order._blocks[block]):
                streams[source] += map(tuple, order._find_rows(source, first, last)[:2].T.tolist())
        assert len(list_rows(order)) == order.num_rows
    for source, stream in streams.items():
        rows = {(shard, row) for shard in range(3) if owners[shard] == source for row in range(sizes[shard])}
        for begin in range(0, len(stream) - len(rows) + 1, len(rows)):
            assert set(stream[begin : begin + len(rows)]) == rows
        orders = {tuple(stream[begin : begin + len(rows)]) for begin in range(0, len(stream) - len(rows), len(rows))}
        assert len(orders) > 1, "each time round is in another order"


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=5),
    st.floats(0, 1),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
    st.data(),
)
def test_any_stretch_is_found_without_those_before_it(sizes, alpha, until, epoch, data):
    starts = [0.0, *data.draw(st.lists(st.floats(0, 0.9), min_size=len(sizes) - 1, max_size=len(sizes) - 1))]
    mixture = mix(sizes, ((until, alpha), (1.0, 0.3)), starts)
    whole = MixedOrder(sizes, mixture, seed=5, epoch=epoch)
    start = data.draw(st.integers(0, whole.num_rows))
    stop = data.draw(st.integers(start, whole.num_rows + 5))
    found = MixedOrder(sizes, mixture, seed=5, epoch=epoch).locate(start, stop)
    assert found.T.tolist() == whole.locate(0, whole.num_rows).T.tolist()[start:stop]
    assert abs(whole.num_rows - sum(sizes)) <= len(sizes) * 3, "an epoch is as long as all sources together"
    rows = Counter(map(tuple, whole.locate(0, whole.num_rows).T.tolist()))
    most = -(-whole.num_rows // MOST_PASSES)  # one, but for a source of a row or two that is alone for long
    assert max(rows.values(), default=0) <= most, "the number of the pass tells rows apart"


def build_loader(**options):
    generator = np.random.default_rng(0)
    stores = [
        TokenStore.from_documents([generator.integers(5, 90, 14) for _ in range(number)], 90) for number in (120, 12)
    ]
    loader = PackedLoader(
        StoresInMemory(stores, [1.0, 1.0]),
        cls_token_id=1,
        sep_token_id=2,
        pad_token_id=0,
        row_length=16,
        rows_per_batch=8,
        **options,
    )
    loader.mixture = mix([120, 12], ((0.3, 1.0), (1.0, 0.3)), (0.0, 0.1), epochs=2)
    return loader


def test_batches_from_the_middle_and_of_ranks_are_those_of_the_whole():
    whole = [batch.input_ids for batch in build_loader().epoch(1)]
    later = [batch.input_ids for batch in build_loader().epoch(1, start_batch=3)]
    assert all(torch.equal(one, other) for one, other in zip(whole[3:], later, strict=True))
    ranks = [list(build_loader().for_rank(rank, 2).epoch(1)) for rank in range(2)]
    for place, batch in enumerate(whole[:-1]):
        joined = torch.stack([share[place].input_ids for share in ranks], 1).flatten(0, 1)
        assert torch.equal(joined, batch)


def test_a_part_of_a_loader_has_the_samples_of_its_shards():
    loader = build_loader(shuffle=False)
    loader.mixture = None
    parts = [loader.for_shards([shard]) for shard in range(2)]
    whole = sorted(sample for batch in loader.epoch(0) for sample in batch.sample_ids.unique().tolist())
    found = [{sample for batch in part.epoch(0) for sample in batch.sample_ids.unique().tolist()} for part in parts]
    assert sorted(set(whole)) == sorted(found[0] | found[1] | {0})
    assert [part.num_rows for part in parts] == [120, 12]
