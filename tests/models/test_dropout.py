"""Dropout on CPUs and in compiled layers: torch's meaning, with draws of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from maskwright.models.attention import SelfAttention
from maskwright.models.layers import GELU, Dropout, _draw_by_hash, _GELUOnARM, _keep, drop
from tolerances import assert_rounded, rounding, sampling


def drop_by_hash(values: torch.Tensor, rate: float) -> torch.Tensor:
    """As in layers compiled for a GPU."""
    return _keep(values, _draw_by_hash(values), round(rate * 65536))


either = pytest.mark.parametrize("dropped_by", [drop, drop_by_hash])
Drop = Callable[[torch.Tensor, float], torch.Tensor]


@either
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_the_rest_scaled_up(rate: float, dropped_by: Drop) -> None:
    torch.manual_seed(0)
    dropped = dropped_by(torch.ones(1000, 333), rate)
    share = (dropped == 0).double().mean().item()
    error = sampling(rate, dropped.numel())
    assert share == pytest.approx(rate, abs=error)
    assert dropped.double().mean().item() == pytest.approx(1.0, abs=error / (1 - rate))
    assert len(dropped.unique()) == 2


@either
@pytest.mark.parametrize("row", [4, 640, 1024])
def test_neighbours_are_dropped_independently(row: int, dropped_by: Drop) -> None:
    """Four values may share a random word, and all come from numbers in a row: their draws must not be related."""
    torch.manual_seed(0)
    is_dropped = (dropped_by(torch.ones(400_000 // row * row), 0.5) == 0).double().view(-1, row)[:, :4]
    correlations = torch.corrcoef(is_dropped.T) - torch.eye(4)
    assert correlations.abs().max() < 5 / len(is_dropped) ** 0.5
    above, below = is_dropped[:-1].flatten(), is_dropped[1:].flatten()
    assert torch.corrcoef(torch.stack([above, below]))[0, 1].abs() < 5 / len(above) ** 0.5


@either
def test_the_gradient_is_that_of_the_values_kept(dropped_by: Drop) -> None:
    torch.manual_seed(0)
    values = torch.randn(7, 9, requires_grad=True)
    dropped = dropped_by(values, 0.3)
    dropped.sum().backward()
    scale = 1 / (1 - round(0.3 * 65536) / 65536)
    torch.testing.assert_close(values.grad, (dropped != 0).float() * scale)


@either
def test_the_generator_decides(dropped_by: Drop) -> None:
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropped_by(torch.ones(64), 0.5))
    assert draws[0].equal(draws[1])
    assert not draws[0].equal(draws[2])


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("cpu", "aot_eager_decomp_partition"),  # what the compiler makes of both passes, without kernels in C++
        pytest.param("cpu", "inductor", marks=pytest.mark.slow),
        pytest.param("cuda", "inductor", marks=pytest.mark.gpu),
    ],
)
def test_compiled_draws_are_new_in_every_call_and_the_same_backward(device: str, backend: str) -> None:
    compiled = torch.compile(drop if device == "cuda" else drop_by_hash, fullgraph=True, backend=backend)
    values = torch.randn(64, 333, device=device, requires_grad=True)
    dropped = [compiled(values, 0.5) for _ in range(2)]
    assert not (dropped[0] == 0).equal(dropped[1] == 0)
    for one in dropped:
        (gradient,) = torch.autograd.grad(one.sum(), values)
        assert (gradient == 0).equal(one == 0)
        assert (one == 0).double().mean().item() == pytest.approx(0.5, abs=sampling(0.5, one.numel()))


def test_evaluation_and_rates_at_the_ends() -> None:
    values = torch.randn(5, 5)
    assert Dropout(0.5).eval()(values).equal(values)
    assert drop(values, 0.0).equal(values)
    assert not drop(values, 1.0).any()


@pytest.mark.parametrize("masking", ["none", "documents", "scores"])
def test_attention_that_drops_almost_nothing_is_attention(masking: str) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(16, 2, dropout=1e-5).train()
    documents = (torch.arange(6) // 4)[None]
    mask = (documents[:, :, None] == documents[:, None, :])[:, None]
    given = {"none": None, "documents": mask, "scores": torch.randn(1, 1, 6, 6)}[masking]
    hidden = torch.randn(1, 6, 16)
    expected = attention.eval()(hidden, given)
    found = [attention.train()(hidden, given) for _ in range(3)]
    of_scale = expected.abs().max().item() / 65_535  # what is kept is scaled up by 65,536 / 65,535
    num_terms = 3 * 16 + 2 * 6
    smallest = min((one - expected).abs().max().item() for one in found)
    assert smallest <= of_scale + rounding(num_terms, expected.abs().max().item())


@pytest.mark.parametrize("activate", [GELU(), _GELUOnARM.apply], ids=["chosen", "ARM"])
def test_gelu_has_torchs_gradient(activate) -> None:  # type: ignore[no-untyped-def]
    values = torch.linspace(-9, 9, 2001, requires_grad=True)
    weights = torch.randn(2001)
    (expected,) = torch.autograd.grad((F.gelu(values.double()) * weights).sum(), values)
    (found,) = torch.autograd.grad((activate(values) * weights).sum(), values)
    assert_rounded(found, expected, num_terms=8)
