"""Any encoder over any samples: each sample's own hidden states, in input order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from maskwright.errors import InputError, InputWarning, RunError
from maskwright.inference import runner
from maskwright.inference.layout import EncodedBatch, Reduction, RowShape, Sample, copy_alone, lay_out, lay_out_flat
from maskwright.inference.runner import run_packed
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from tolerances import assert_rounded, count_terms

SHAPE = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LENGTHS = (3, 17, 2, 9, 9, 30, 4, 1, 12, 25)
NUM_TERMS = count_terms(num_layers=2, width=16, length=sum(LENGTHS))


class ForeignEncoder(nn.Module):
    """Knows padded batches only; mixes each token with the mean of its document."""

    hidden_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(60, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        words, weights = self.word(input_ids), attention_mask[..., None].float()
        return {"last_hidden_state": words + (words * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "foreign":
        return ForeignEncoder().eval()
    family = {"BERT": BERT, "ModernBERT": ModernBERT}[name]
    return family.from_variant("tiny", initializer_range=0.3, max_position_embeddings=32, **SHAPE).eval()


def draw_samples(lengths: tuple[int, ...] = LENGTHS) -> list[Sample]:
    random = np.random.default_rng(0)
    return [Sample(random.integers(1, 60, length).tolist()) for length in lengths]


def encode_alone(encoder: nn.Module, sample: Sample) -> Tensor:
    ids = torch.tensor([sample.ids])
    with torch.no_grad():
        return encoder(input_ids=ids, attention_mask=torch.ones_like(ids))["last_hidden_state"][0]


def split(batch: EncodedBatch[Sample]) -> Reduction:
    lengths = batch.lengths
    return Reduction((batch.hidden,), lambda hidden: hidden.split(lengths))


@pytest.mark.parametrize("batch_tokens", [1, 40, None])
@pytest.mark.parametrize("name", ["BERT", "ModernBERT", "foreign"])
def test_each_sample_gets_its_own_hidden_states_in_input_order(name: str, batch_tokens: int | None) -> None:
    encoder, samples = build(name), draw_samples()
    found = list(run_packed(encoder, samples, split, pad_token_id=0, batch_tokens=batch_tokens))
    assert len(found) == len(samples)
    for sample, hidden in zip(samples, found, strict=True):
        assert_rounded(hidden, encode_alone(encoder, sample), NUM_TERMS)


def test_batches_hold_samples_of_similar_length_and_no_more_tokens_than_asked_for() -> None:
    batches: list[list[int]] = []

    def note(batch: EncodedBatch[Sample]) -> Reduction:
        lengths = [len(sample.ids) for sample in batch.samples]
        batches.append(lengths)
        return Reduction((), lambda: lengths)

    found = list(run_packed(build("BERT"), draw_samples(), note, pad_token_id=0, batch_tokens=40))
    assert found == list(LENGTHS)
    assert [length for batch in batches for length in batch] == sorted(LENGTHS, reverse=True)
    assert all(sum(batch) <= 40 for batch in batches)


def test_no_more_samples_are_read_ahead_than_a_window_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WINDOW_SAMPLES", 4)
    num_read = 0

    def read() -> Iterator[Sample]:
        nonlocal num_read
        for sample in draw_samples((5,) * 20):
            num_read += 1
            yield sample

    results = run_packed(build("BERT"), read(), split, pad_token_id=0)
    next(results)
    assert num_read == 4
    assert len(list(results)) == 19


def test_a_window_is_bounded_by_its_tokens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WINDOW_TOKENS", 12)
    samples = iter(draw_samples((5,) * 20))
    next(run_packed(build("BERT"), samples, split, pad_token_id=0))
    assert len(list(samples)) == 18


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(3, 4), (0, 5), ()])
def test_a_copy_shares_no_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = (torch.rand(shape) * 9).to(dtype)
    before, copied = values.clone(), copy_alone(values)
    assert copied.dtype == dtype
    assert torch.equal(copied, before)
    values.zero_()
    assert torch.equal(copied, before)


def test_dropout_is_off_and_the_mode_comes_back() -> None:
    encoder, samples = build("BERT"), draw_samples()
    expected = list(run_packed(encoder, samples, split, pad_token_id=0))
    results = run_packed(encoder.train(), samples, split, pad_token_id=0)
    first = next(results)
    assert encoder.training
    assert not torch.is_inference_mode_enabled()
    assert_rounded(first, expected[0], NUM_TERMS)


def test_segments_reach_the_encoder() -> None:
    encoder = build("BERT")
    ids, segments = [5, 6, 7, 8], [0, 0, 1, 1]
    samples = [Sample(ids), Sample(ids, segments)]
    plain, told = run_packed(encoder, samples, split, pad_token_id=0)
    with torch.no_grad():
        expected = encoder(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments])).last_hidden_state[0]
    assert_rounded(told, expected, NUM_TERMS)
    assert (plain - told).abs().max() > 0.1


def test_tokens_that_see_only_what_comes_before_them_are_told_to_the_encoder() -> None:
    encoder, sample = build("BERT"), draw_samples((9,))[0]
    shorter = Sample(sample.ids[:5])
    long, short = run_packed(
        encoder,
        [sample, shorter],
        split,
        pad_token_id=0,
        find_causal=lambda batch: torch.ones_like(batch.input_ids, dtype=torch.bool),
    )
    assert_rounded(long[:5], short, NUM_TERMS)


def test_the_documents_of_a_sample_do_not_see_each_other() -> None:
    encoder, alone = build("BERT"), draw_samples((6, 6, 6))
    together = Sample(np.concatenate([sample.ids for sample in alone]), num_documents=3)
    hidden, other = run_packed(encoder, [together, alone[0]], split, pad_token_id=0)
    expected = torch.cat([encode_alone(encoder, sample) for sample in alone])
    assert_rounded(hidden, expected, NUM_TERMS)
    assert_rounded(other, expected[:6], NUM_TERMS)


def test_states_are_taken_at_places_of_each_sample() -> None:
    encoder, samples = build("BERT"), draw_samples((4, 9))
    places = {4: [1, 3], 9: [0, 8, 5]}

    def take(batch: EncodedBatch[Sample]) -> Reduction:
        asked = [places[len(sample.ids)] for sample in batch.samples]
        return Reduction((batch.take(asked),), lambda taken: taken.split([len(one) for one in asked]))

    for sample, found in zip(samples, run_packed(encoder, samples, take, pad_token_id=0), strict=True):
        assert_rounded(found, encode_alone(encoder, sample)[places[len(sample.ids)]], NUM_TERMS)


def test_nothing_in_nothing_out() -> None:
    assert list(run_packed(build("BERT"), [], split, pad_token_id=0)) == []


def test_a_batch_of_no_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="batch_tokens is 0"):
        list(run_packed(build("BERT"), draw_samples(), split, pad_token_id=0, batch_tokens=0))


@pytest.mark.parametrize(("longest", "length"), [(5, 64), (20, 64), (40, 40), (63, 64), (64, 64), (300, 304)])
def test_rows_are_as_long_as_the_longest_sample_or_hold_several(longest: int, length: int) -> None:
    assert RowShape(least=64, multiple=8).choose(longest) == length


def test_short_samples_share_rows_and_fill_them() -> None:
    packed = lay_out(draw_samples((8,) * 16), RowShape(least=64, multiple=1), pad_token_id=0)
    batch, places = packed.batch, packed.places
    assert batch.input_ids.shape == (2, 64)
    assert batch.num_tokens() == len(set(places.tolist())) == 128


def limit_tokens(encoder: nn.Module, most: int) -> list[int]:
    """The encoder runs out of memory on more places; how many were tried."""
    forward, tried = encoder.forward, []

    def limited(*arguments: Any, **named: Any) -> Any:
        batch = arguments[0] if arguments else next(iter(named.values()))
        tried.append(getattr(batch, "input_ids", batch).numel())
        if tried[-1] > most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        return forward(*arguments, **named)

    encoder.forward = limited  # type: ignore[method-assign]
    return tried


def test_out_of_memory_batches_are_halved() -> None:
    encoder, samples = build("foreign"), draw_samples()
    expected = [encode_alone(encoder, sample) for sample in samples]
    tried = limit_tokens(encoder, 64)
    with pytest.warns(InputWarning, match="out of memory with .* tokens at a time; going on with at most"):
        found = list(run_packed(encoder, samples, split, pad_token_id=0))
    for one, other in zip(found, expected, strict=True):
        assert_rounded(one, other, NUM_TERMS, magnitude=1.0)
    assert max(tried) > 64


def test_a_text_that_no_memory_holds_is_said() -> None:
    encoder = build("foreign")
    limit_tokens(encoder, 0)
    with pytest.raises(RunError, match=r"out of memory with a single text of 3 tokens .*use a smaller model"):
        list(run_packed(encoder, draw_samples((3,)), split, pad_token_id=0))


def test_flat_rows_have_few_lengths_and_little_padding_behind_the_last_sample() -> None:
    lengths = {}
    for count in range(1, 2_049):
        batch = lay_out_flat([Sample([5] * count)], pad_token_id=9).batch
        lengths[count] = batch.input_ids.shape[1]
        assert 0 <= lengths[count] - count < max(8, count / 16)
        assert batch.input_ids[0, count:].tolist() == [9] * (lengths[count] - count)
        assert batch.is_padding[0].tolist() == [False] * count + [True] * (lengths[count] - count)
    assert len(set(lengths.values())) == 256 // 8 + 3 * 16
