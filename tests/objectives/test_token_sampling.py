"""Tokens drawn by inverting the distribution function."""

from __future__ import annotations

import math

import pytest
import torch

from maskwright.objectives.generator import draw_uniform, sample_tokens
from maskwright.randomness import Stream, compute_key


def make_key(seed, epoch):
    return compute_key(seed, epoch, Stream.SAMPLING)


def test_draws_change_with_seed_epoch_sample_and_position_alone():
    key = make_key(seed=1, epoch=2)
    samples, positions = torch.arange(50)[:, None], torch.arange(40)[None]
    first = draw_uniform(key, samples, positions)
    assert torch.equal(first, draw_uniform(key, samples, positions))
    for other in (
        draw_uniform(make_key(seed=2, epoch=2), samples, positions),
        draw_uniform(make_key(seed=1, epoch=3), samples, positions),
        draw_uniform(key, samples + 50, positions),
        draw_uniform(key, samples, positions + 40),
    ):
        assert (
            abs(float(torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1])) < 5 / first.numel() ** 0.5
        )
    assert float(first.min()) >= 0.0
    assert float(first.max()) < 1.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_drawn_frequencies_follow_the_softmax(temperature):
    num_draws = 20_000
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, 0.5, -math.inf])
    uniform = draw_uniform(7, torch.arange(num_draws), torch.zeros(num_draws, dtype=torch.long))
    drawn = sample_tokens(logits.expand(num_draws, -1), uniform, temperature)
    counts = torch.bincount(drawn, minlength=6).float()
    expected = torch.softmax(logits / temperature, dim=-1) * num_draws
    assert counts[5] == 0
    chi_square = ((counts - expected)[:5] ** 2 / expected[:5]).sum()
    assert chi_square < 18.5, "beyond the 99.9th percentile of 4 degrees of freedom"


def test_the_largest_number_draws_the_last_possible_token():
    logits = torch.tensor([[0.3] * 5000 + [-math.inf] * 3])
    largest = torch.tensor([1.0 - 2.0**-24])
    assert int(sample_tokens(logits, largest, 1.0)) == 4999
    assert int(sample_tokens(logits, torch.zeros(1), 1.0)) == 0
