"""Passes over short texts that are replayed as CUDA graphs: what fills a row up changes no text's states, and a graph
is used only where it does what the encoder would do."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flat_lab import build
from torch import Tensor

from maskwright.batch import FlatBatch
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, lay_out_bounded
from maskwright.inference.runner import run_packed
from maskwright.models import documents
from maskwright.models.any_encoder import encode
from maskwright.models.recording import InferenceRecorder, Slots, choose_size, count_documents
from tolerances import assert_rounded, count_terms

LONGEST = 12
NUM_TERMS = count_terms(num_layers=2, width=32, length=LONGEST)


def draw(num_texts: int, seed: int = 0, with_types: bool = False) -> list[Sample]:
    random = np.random.default_rng(seed)
    lengths = random.integers(2, LONGEST + 1, num_texts).tolist()
    rows = [random.integers(5, 150, length).tolist() for length in lengths]
    return [Sample(row, [0] + [1] * (len(row) - 1) if with_types else None) for row in rows]


def lay_out(samples: list[Sample], device: str = "cpu") -> FlatBatch:
    batch = lay_out_bounded(samples, torch.device(device)).batch
    assert isinstance(batch, FlatBatch)
    return batch


def attend_by_numbers(query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, *others: Any) -> Tensor:
    heads = (one.transpose(0, 1)[None] for one in (query, key, value))
    attended = F.scaled_dot_product_attention(*heads, attn_mask=numbers[:, None] == numbers)[0].transpose(0, 1)
    return torch.empty_like(query).copy_(attended)


@pytest.mark.parametrize("with_types", [False, True])
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_what_fills_a_row_up_changes_nothing(family: str, with_types: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_attend", attend_by_numbers)
    encoder = build(family)
    batches = [lay_out(draw(count, seed=count, with_types=with_types)) for count in (20, 3, 17)]
    size = choose_size(max(batch.input_ids.shape[1] for batch in batches))
    slots = Slots(size, batches[0])
    with torch.inference_mode():
        for batch in batches:
            slots.fill(batch)
            found = encode(encoder, slots.batch)[:, : batch.input_ids.shape[1]]
            assert_rounded(found, encode(encoder, batch), NUM_TERMS)


@pytest.mark.parametrize("num_texts", [1, 9, 40])
def test_a_filled_row_has_bounds_without_gaps(num_texts: int) -> None:
    batch = lay_out(draw(num_texts))
    num_tokens = batch.input_ids.shape[1]
    size = choose_size(num_tokens)
    slots = Slots(size, lay_out(draw(12, seed=1)))
    slots.fill(batch)
    starts, numbers = slots.batch.bounds.starts.tolist(), slots.batch.bounds.numbers.tolist()
    num_documents = max(numbers)
    assert numbers == [1 + sum(start <= token for start in starts[1:num_documents]) for token in range(size)]
    assert starts[: num_texts + 1] == batch.bounds.starts.tolist()
    assert starts[num_documents] == size
    fillings = np.diff(starts[num_texts : num_documents + 1])
    assert fillings.sum() == size - num_tokens
    assert all(0 < filling <= 64 for filling in fillings)


def test_sizes_are_few_and_near() -> None:
    sizes = {count: choose_size(count) for count in range(1, 65_537)}
    assert all(count <= size <= max(64, count * 9 / 8 + 64) for count, size in sizes.items())
    assert sizes[65_536] == 65_536
    assert len(set(sizes.values())) < 80
    assert all(count_documents(size) >= count // 2 + -(-(size - count) // 64) for count, size in sizes.items())


def test_on_a_cpu_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_attend", attend_by_numbers)
    encoder, batch = build("bert"), lay_out(draw(9))
    expected = encode(encoder, batch)
    recorder = encoder.inference_recorder = InferenceRecorder()
    with torch.inference_mode():
        found = [encode(encoder, batch) for _ in range(5)]
    assert recorder.num_recordings == 0
    assert all(torch.equal(one, expected) for one in found)


WIDTH = 128
EPSILON = 2.0**-7
NUM_ROUNDINGS = 12 * 2
"""Of two layers: products, sums, norms, activations and attention."""


def build_recorded(family: str = "bert") -> Any:
    encoder = build(family, hidden_size=WIDTH, num_attention_heads=2, intermediate_size=256).cuda().bfloat16()
    encoder.inference_recorder = InferenceRecorder()
    return encoder


def read(encoder: Any, batch: FlatBatch, times: int = 1) -> Tensor:
    """The last of some passes."""
    with torch.inference_mode():
        return [encode(encoder, batch).float() for _ in range(times)][-1]


def read_as_it_is(encoder: Any, batch: FlatBatch) -> Tensor:
    plain = copy.deepcopy(encoder)
    plain.inference_recorder = None
    return read(plain, batch)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Products of another number of rows may round in another order."""
    error = (found - expected).norm() / (expected - expected.mean(1, keepdim=True)).norm()
    assert float(error) < NUM_ROUNDINGS**0.5 * EPSILON


@pytest.mark.gpu
@pytest.mark.parametrize("with_types", [False, True])
@pytest.mark.parametrize("family", ["bert", "modernbert", "neobert", "distilbert"])
def test_replayed_states_are_those_of_the_encoder(family: str, with_types: bool) -> None:
    encoder = build_recorded(family)
    for seed in range(6):
        batch = lay_out(draw(100, seed, with_types), "cuda")
        assert_near(read(encoder, batch), read_as_it_is(encoder, batch))
    assert encoder.inference_recorder.num_recordings >= 1


@pytest.mark.gpu
def test_weights_may_change_in_place_and_move() -> None:
    encoder, batch = build_recorded(), lay_out(draw(50), "cuda")
    before = read(encoder, batch, times=4)
    with torch.no_grad():
        for param in encoder.parameters():
            param.mul_(1.5)
    changed = read(encoder, batch)
    assert encoder.inference_recorder.num_recordings == 1
    assert_near(changed, read_as_it_is(encoder, batch))
    assert (changed - before).norm() > 0.1 * before.norm()
    encoder.half()
    assert_near(read(encoder, batch), read_as_it_is(encoder, batch))
    assert encoder.inference_recorder.num_recordings == 0


@pytest.mark.gpu
def test_a_hook_is_called_every_time() -> None:
    encoder, batch = build_recorded(), lay_out(draw(50), "cuda")
    calls: list[int] = []
    encoder.layers[0].register_forward_hook(lambda *given: calls.append(1))
    read(encoder, batch, times=6)
    assert len(calls) == 6


@pytest.mark.gpu
def test_long_texts_and_gradients_run_as_they_are() -> None:
    encoder = build_recorded()
    long = lay_out([Sample([7] * 300)], "cuda")
    read(encoder, long, times=4)
    short = lay_out(draw(50), "cuda")
    assert [encode(encoder, short).requires_grad for _ in range(4)] == [True] * 4
    assert encoder.inference_recorder.num_recordings == 0


@pytest.mark.gpu
def test_batches_that_wait_for_each_other_keep_their_states() -> None:
    """Several batches are under way while results are read."""
    encoder = build_recorded()
    samples = draw(4_000)

    def keep(batch: EncodedBatch[Sample]) -> Reduction:
        lengths = batch.lengths
        return Reduction((batch.hidden.float(),), lambda hidden: hidden.split(lengths))

    plain = copy.deepcopy(encoder)
    plain.inference_recorder = None
    found, expected = (
        torch.cat(list(run_packed(which, samples, keep, pad_token_id=0, batch_tokens=1_000)))
        for which in (encoder, plain)
    )
    assert encoder.inference_recorder.num_recordings >= 1
    assert_near(found[None], expected[None])
