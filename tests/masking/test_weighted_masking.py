"""Masking by weights: the share of a sample, the preference for heavy tokens, and what the tables hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.batch import IGNORED_LABEL, from_padded
from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.masking.tokens import TokenMasker
from maskwright.masking.weighted import AdaptiveMasker, FrequencyMasker
from maskwright.randomness import Stream, compute_key, random_uint32, threshold

VOCAB_SIZE, MASK, SPECIALS = 50, 4, (0, 1, 2, 3, 4)
VOCABULARY = (VOCAB_SIZE, MASK, SPECIALS)
STEP = torch.zeros(())


def build_frequency(counts, **options) -> FrequencyMasker:
    masker = FrequencyMasker(*VOCABULARY, **options)
    masker.set_counts(torch.tensor(counts))
    return masker


def build_batch(rows, length=None, seed=0):
    """Rows of ordinary tokens between [CLS] and [SEP], drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCAB_SIZE, (rows, length), generator=generator)
    ids[:, 0], ids[:, -1] = 2, 3
    return from_padded(ids, sample_ids=torch.arange(rows))


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 0.9), st.integers(1, 60), st.integers(0, 2**31), st.floats(0.1, 2.0))
def test_every_sample_has_its_share_and_no_special_token(ratio, length, seed, exponent):
    counts = torch.randint(0, 10**6, (VOCAB_SIZE,), generator=torch.Generator().manual_seed(seed)).tolist()
    batch = build_batch(300, length + 2, seed)
    corrupted = build_frequency(counts, exponent=exponent).corrupt(batch, ratio, seed, 1)
    assert not corrupted.selected[:, [0, -1]].any()
    chosen = corrupted.selected.sum(1).double()
    wanted = length * ratio
    # the share is rounded to 32 bits
    assert chosen.min() >= math.floor(wanted - 1e-6)
    assert chosen.max() <= math.ceil(wanted + 1e-6)
    rest = wanted % 1
    assert chosen.mean().item() == pytest.approx(wanted, abs=1e-6 + 5 * math.sqrt(rest * (1 - rest) / 300))


@pytest.mark.parametrize("seed", [0, 7])
def test_the_choice_is_that_of_a_plain_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 1000, (VOCAB_SIZE,), generator=generator)
    batch = build_batch(20, 17, seed)
    found = build_frequency(counts.tolist(), exponent=0.7).corrupt(batch, 0.3, seed, 2).selected
    weights = [(int(count) + 1) ** -0.7 for count in counts]
    lightest = min(weights[5:])
    key, rounding_key = (compute_key(seed, 2, stream) for stream in (Stream.SELECTION, Stream.ROUNDING))
    for row in range(20):
        sample = torch.tensor(row)
        draws = random_uint32(key, sample, torch.arange(17)).tolist()
        keys = {
            place: draws[place] * min(round(lightest / weights[token] * 2**24), 2**24) >> 24
            for place, token in enumerate(batch.input_ids[row].tolist())
            if token not in SPECIALS
        }
        quota = (len(keys) * threshold(0.3) + int(random_uint32(rounding_key, sample))) >> 32
        expected = sorted(keys, key=lambda place: (keys[place], place))[:quota]
        assert found[row].nonzero().flatten().tolist() == sorted(expected)


def test_rare_tokens_are_chosen_in_proportion_to_their_weight():
    counts = [0] * 5 + [1599] * 25 + [99] * 20  # weights 1/40 and 1/10
    batch = build_batch(4000, 52)
    selected = build_frequency(counts).corrupt(batch, 0.1, 3, 0).selected
    is_rare = batch.input_ids >= 30
    is_common = (batch.input_ids >= 5) & ~is_rare
    rare, common = (float(selected[kind].double().mean()) for kind in (is_rare, is_common))
    # sequential Poisson sampling keeps proportions up to the order of 1 / (tokens of a sample)
    assert rare / common == pytest.approx(4.0, rel=0.05)


def test_equal_weights_choose_what_masking_by_token_does():
    batch = build_batch(50, 30)
    expected = TokenMasker(*VOCABULARY).corrupt(batch, 0.2, 1, 3)
    for masker in (build_frequency([7] * VOCAB_SIZE), AdaptiveMasker(*VOCABULARY)):
        found = masker.corrupt(batch, 0.2, 1, 3)
        assert torch.equal(found.labels, expected.labels)
        assert torch.equal(found.batch.input_ids, expected.batch.input_ids)


def learn(masker, step, labels, losses, skip=0.0):
    masker.begin_step()
    masker.record(torch.tensor(labels), torch.tensor(losses))
    masker.end_step(step, torch.tensor(skip), lambda tensor: tensor)


def test_the_running_loss_is_the_average_of_the_means():
    masker = AdaptiveMasker(*VOCABULARY, update_every_steps=2, loss_decay=0.75)
    learn(masker, 0, [10, 10, 11, IGNORED_LABEL], [1.0, 2.0, 8.0, 5.0])
    assert masker.losses.tolist() == [math.log(VOCAB_SIZE)] * VOCAB_SIZE, "no update is due"
    learn(masker, 1, [10, 12], [6.0, 0.0])
    expected = [math.log(VOCAB_SIZE)] * VOCAB_SIZE
    for token, mean in ((10, 3.0), (11, 8.0), (12, 0.0)):
        expected[token] = 0.75 * expected[token] + 0.25 * mean
    assert masker.losses.tolist() == pytest.approx(expected, abs=2**-20)
    learn(masker, 2, [10], [1.0])
    learn(masker, 3, [11], [1.0], skip=1.0)
    expected[10] = 0.75 * expected[10] + 0.25
    assert masker.losses.tolist() == pytest.approx(expected, abs=2**-19), "a skipped step teaches nothing"


def test_what_a_repeated_attempt_recorded_counts_once():
    masker = AdaptiveMasker(*VOCABULARY, update_every_steps=1, loss_decay=0.0)
    masker.begin_step()
    masker.record(torch.tensor([10]), torch.tensor([9.0]))
    learn(masker, 0, [10], [2.0])
    assert masker.losses[10].item() == pytest.approx(2.0)


def test_hard_tokens_are_chosen_more_often():
    masker = AdaptiveMasker(*VOCABULARY, update_every_steps=1, loss_decay=0.0, exponent=1.0)
    learn(masker, 0, list(range(5, 50)), [0.5] * 25 + [4.0] * 20)
    batch = build_batch(500, 52)
    selected = masker.corrupt(batch, 0.1, 0, 0).selected
    easy = (batch.input_ids >= 5) & (batch.input_ids < 30)
    assert selected[batch.input_ids >= 30].double().mean() > 5 * selected[easy].double().mean()


def test_tables_are_those_of_all_processes_and_go_on_in_one():
    masker = AdaptiveMasker(*VOCABULARY, update_every_steps=4)
    learn(masker, 0, [10, 11], [1.0, 2.0])
    tables = masker.tables(lambda tensor: 2 * tensor)
    assert tables["loss_counts"][10].item() == 2
    others = [AdaptiveMasker(*VOCABULARY, update_every_steps=4) for _ in range(2)]
    for rank, other in enumerate(others):
        other.load_tables(tables, rank == 0)
    summed = sum(other.tables(lambda tensor: tensor)["loss_sums"] for other in others)
    assert torch.equal(summed, tables["loss_sums"])


@pytest.mark.parametrize("strategy", ["frequency", "adaptive"])
def test_a_table_of_another_run_is_refused(strategy):
    masker = build_masker(*VOCABULARY, strategy=strategy)
    with pytest.raises(InputError, match=f"another masking.strategy than {strategy}, or another vocabulary"):
        masker.load_tables({"counts": torch.zeros(3, dtype=torch.long)}, True)


def test_what_cannot_be_is_refused_in_one_sentence():
    with pytest.raises(InputError, match=r"call model\.set_token_counts"):
        FrequencyMasker(*VOCABULARY).corrupt(build_batch(1, 5), 0.2, 0, 0)
    with pytest.raises(InputError, match="expected an integer of at least 0 for each of the 50 ids"):
        build_frequency([1, 2, 3])
    with pytest.raises(InputError, match="set selection=exact"):
        build_masker(*VOCABULARY, strategy="adaptive", selection="bernoulli")
    with pytest.raises(InputError, match="it must be positive"):
        build_masker(*VOCABULARY, strategy="frequency", exponent=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["frequency", "adaptive"])
def test_weighted_masks_are_the_same_on_cpu_and_gpu(strategy):
    batch, found = build_batch(100, 50), []
    for device in ("cpu", "cuda"):
        masker = build_masker(*VOCABULARY, strategy=strategy, update_every_steps=1)
        if isinstance(masker, FrequencyMasker):
            masker.set_counts(torch.arange(VOCAB_SIZE) ** 2)
        else:
            masker.begin_step()
            masker.record(torch.arange(5, 50, device=device), torch.linspace(0.1, 9, 45, device=device))
            masker.end_step(0, STEP.to(device), lambda tensor: tensor)
        found.append(masker.corrupt(batch.to(device), 0.2, 5, 1).labels.cpu())
    assert torch.equal(*found)
