"""The counter-based hash: uniform, independent between streams, the same everywhere and for ever."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.randomness import (
    Stream,
    compute_key,
    hash_counters,
    permutation,
    random_below,
    random_uint32,
    seed_generators,
    threshold,
)


def reference_hash(key: int, *counters: int) -> int:
    """The same hash in plain Python integers."""
    mask = (1 << 64) - 1
    state = key
    for counter in counters:
        state = (state + 0x9E3779B97F4A7C15 + counter) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return state


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_tensor_arithmetic_equals_python_integers(key, sample, position):
    hashed = hash_counters(key, torch.tensor([sample]), torch.tensor([position]))
    assert int(hashed[0]) & ((1 << 64) - 1) == reference_hash(key, sample, position)


def test_keys_differ_by_seed_epoch_and_stream():
    keys = {compute_key(seed, epoch, stream) for seed in range(20) for epoch in range(20) for stream in Stream}
    assert len(keys) == 20 * 20 * len(Stream)


def test_draws_are_uniform():
    draws = random_uint32(compute_key(0, 0, Stream.SELECTION), torch.arange(200_000))
    counts = torch.histc(draws.double(), bins=100, min=0, max=2**32)
    chi_squared = float(((counts - 2000) ** 2 / 2000).sum())
    assert chi_squared < 160  # 99 degrees of freedom: beyond 160 once in 10,000 seeds


def test_neighbouring_counters_are_not_correlated():
    draws = random_uint32(compute_key(7, 1, Stream.SELECTION), torch.arange(100_000)).double()
    assert abs(float(torch.corrcoef(torch.stack([draws[:-1], draws[1:]]))[0, 1])) < 0.02


@pytest.mark.parametrize("probability", [0.0, 0.15, 0.5, 1.0])
def test_threshold_meets_its_probability(probability):
    draws = random_uint32(compute_key(3, 0, Stream.CORRUPTION), torch.arange(100_000))
    assert float((draws < threshold(probability)).double().mean()) == pytest.approx(probability, abs=0.008)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 2**31), st.integers(0, 1000))
def test_bounded_draws_stay_in_bounds(limit, seed):
    draws = random_below(limit, compute_key(seed, 0, Stream.REPLACEMENT), torch.arange(100))
    assert int(draws.min()) >= 0
    assert int(draws.max()) < limit


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(0, 100))
def test_permutation_holds_every_item_once(num_items, seed):
    order = permutation(num_items, compute_key(seed, 0, Stream.ORDER))
    assert sorted(order.tolist()) == list(range(num_items))


def test_generators_of_the_cpu_draw_as_after_a_seed_of_all():
    torch.manual_seed(2**63 - 1)
    expected = torch.rand(8)
    torch.rand(3)
    seed_generators(2**63 - 1, torch.device("cpu"))
    assert torch.equal(torch.rand(8), expected)
