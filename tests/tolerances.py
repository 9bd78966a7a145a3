"""How far two right computations of one quantity may lie apart: bounds from the dtype, the sizes and the draws.

The result of a floating-point sum depends on the order of its terms, and every processor, library and batch shape has
an order of its own. Exact quantities need no bound: counts, ids, and the same kernel on the same shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def rounding(num_terms: int, magnitude: float = 1.0, dtype: torch.dtype = torch.float32) -> float:
    """The largest difference between two sums of the same `num_terms` terms that rounding explains.

    An addition rounds its result, of at most `magnitude`, by up to eps / 2, or eps / sqrt(12) in the root mean square.
    Roundings have either sign, so those of a sum come to eps / sqrt(12) * sqrt(num_terms), and those of the difference
    of two sums to sqrt(2) times that: 0.41 * eps * sqrt(num_terms) * magnitude. The bound is five times as much, for
    the largest of many values. Libraries add in partial sums, which leaves room for layers that enlarge an error.
    """
    return 2 * torch.finfo(dtype).eps * math.sqrt(num_terms) * magnitude


def count_terms(num_layers: int, width: int, length: int) -> int:
    """Additions one after another in an encoder and its head, for rows of `length` tokens.

    A layer adds up `width` terms in its projections, its scores and the product back (3), in the means and squares of
    two norms (4) and in the two products of the feed-forward part (1 and 4), and `length` terms in the softmax and in
    the sum of the values. The head counts as one more layer. A gradient goes back the same way: twice as many.
    """
    return (num_layers + 1) * (12 * width + 2 * length)


def sampling(share: float, num_draws: int) -> float:
    """Five standard deviations of the share of independent draws: exceeded by chance in one test of two million."""
    return 5 * math.sqrt(share * (1 - share) / num_draws)


def assert_rounded(
    found: Any, expected: Any, num_terms: int, magnitude: float = 0.0, dtype: torch.dtype = torch.float32
) -> None:
    """Assert that arrays, numbers or mappings of them differ by rounding alone.

    The magnitude is that of the largest expected value, in a mapping the largest of all. Give a larger one where terms
    cancel: a sum may be much smaller than they are.
    """
    if not isinstance(expected, Mapping):
        found, expected = {"the value": found}, {"the value": expected}
    assert found.keys() == expected.keys()
    found, expected = ({name: _as_double(one) for name, one in values.items()} for values in (found, expected))
    magnitude = max(magnitude, *(float(one.abs().max()) for one in expected.values()))
    for name, one in expected.items():
        torch.testing.assert_close(
            found[name],
            one,
            rtol=0,
            atol=rounding(num_terms, magnitude, dtype),
            msg=lambda text, name=name: f"{name}: {text}",
        )


def _as_double(values: Any) -> torch.Tensor:
    return torch.as_tensor(values).detach().double().cpu()
