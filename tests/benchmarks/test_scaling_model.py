"""The model of benchmarks/scaling.py against what can be worked out by hand."""

from __future__ import annotations

import math

import pytest
from scaling import NETWORKS, Link, Network, Step, cut_buckets, fit_link, predict_step_s

STEP = Step(0.1, backward_share=0.6, optimizer_share=0.1, buckets=(10e6, 10e6, 20e6))


def test_a_ring_takes_its_hops_and_its_bytes() -> None:
    assert Link(1e-3, 1e9).ring_s(8e6, 4) == pytest.approx(6 * (1e-3 + 2e6 / 1e9))
    assert Link(1e-3, 1e9).ring_s(8e6, 1) == 0


def test_machines_exchange_the_share_of_each_gpu() -> None:
    network = Network(Link(0.0, 1e9), Link(0.0, 1e8), 4)
    assert network.all_reduce_s(8e6, 4) == pytest.approx(2 * 3 / 4 * 8e6 / 1e9)
    assert network.all_reduce_s(8e6, 8) == pytest.approx(2 * 3 / 4 * 8e6 / 1e9 + 2 * 1 / 2 * 2e6 / 1e8)


def test_one_gpu_takes_its_step() -> None:
    for network in NETWORKS.values():
        assert predict_step_s(STEP, network, 1, jitter=0.5) == pytest.approx(0.1)


def test_only_what_the_backward_pass_does_not_cover_is_waited_for() -> None:
    """Buckets are ready after 45, 60 and 90 ms of the 90 before the optimizer; exchanges take 10, 10 and 20 ms."""
    network = Network(Link(0.0, 1e9), Link(0.0, 1e9), 2)
    assert predict_step_s(STEP, network, 2) == pytest.approx(0.1 + 0.02)
    assert predict_step_s(STEP, network, 2, hides=False) == pytest.approx(0.1 + 0.04)
    slow = Network(Link(0.0, 1e8), Link(0.0, 1e8), 2)  # ready after 45 ms, then busy for 400
    assert predict_step_s(STEP, slow, 2) == pytest.approx(0.045 + 0.4 + 0.01)


def test_every_step_waits_for_the_slowest() -> None:
    fast = Network(Link(0.0, 1e15), Link(0.0, 1e15), 8)
    assert predict_step_s(STEP, fast, 64, jitter=0.02) == pytest.approx(0.1 + 0.002 * math.sqrt(2 * math.log(64)))


def test_a_link_is_found_from_its_times() -> None:
    link, sizes = Link(2e-4, 5e8), (4096, 1 << 20, 1 << 26)
    found = fit_link([link.ring_s(size, 4) for size in sizes], sizes, 4)
    assert found.latency_s == pytest.approx(link.latency_s, rel=1e-3)  # times are in float32
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-3)


def test_buckets_hold_all_gradients_and_the_last_is_the_embeddings() -> None:
    buckets = cut_buckets(440e6, 94e6)
    assert sum(buckets) == pytest.approx(440e6)
    assert buckets[-1] == 94e6
    assert max(buckets[:-1]) <= 25 << 20
    assert cut_buckets(10e6, 0.0) == (10e6,)
