"""The area under the ROC curve from counts in bins."""

from __future__ import annotations

import math
import operator

import pytest
import torch

from maskwright.objectives.replaced_tokens import NUM_BINS, compute_auc, count_scores


def test_auc_from_bins_is_close_to_that_of_all_pairs():
    generator = torch.Generator().manual_seed(0)
    is_positive = torch.rand(2000, generator=generator) < 0.2
    logits = torch.randn(2000, generator=generator) * 2 - 2 + 1.5 * is_positive
    is_counted = torch.rand(2000, generator=generator) < 0.9
    counts = count_scores(logits, is_positive, is_counted).tolist()
    assert sum(counts) == int(is_counted.sum())
    ups, downs = logits[is_positive & is_counted], logits[~is_positive & is_counted]
    exact = float((ups[:, None] > downs[None]).float().mean())
    assert 0.6 < exact < 0.8
    up_counts, down_counts = counts[:NUM_BINS], counts[NUM_BINS:]
    # A pair in one bin counts as half right.
    share_in_one_bin = sum(map(operator.mul, up_counts, down_counts)) / (len(ups) * len(downs))
    assert compute_auc(up_counts, down_counts) == pytest.approx(exact, abs=share_in_one_bin / 2)


def test_scores_beyond_the_bins_fall_into_the_outermost():
    counts = count_scores(torch.tensor([-1e9, 1e9]), torch.tensor([False, True]), torch.tensor([True, True]))
    assert int(counts[NUM_BINS]) == int(counts[NUM_BINS - 1]) == 1


def test_auc_of_extremes():
    low, high = [1.0] + [0.0] * (NUM_BINS - 1), [0.0] * (NUM_BINS - 1) + [3.0]
    assert compute_auc(high, low) == 1.0
    assert compute_auc(low, high) == 0.0
    assert compute_auc(low, low) == 0.5
    assert math.isnan(compute_auc(low, [0.0] * NUM_BINS))
