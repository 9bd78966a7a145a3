"""Kernels of our own give what their plain references give, or are not used."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from maskwright.errors import InputWarning
from maskwright.models import layers
from maskwright.models.kernels import availability
from maskwright.models.kernels.availability import runs_kernels
from maskwright.models.layers import LayerNorm, RMSNorm

EPSILONS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
LENGTHS = {
    "one token": [1],
    "one document": [64],
    "tiles end in documents": [3, 1, 20, 64, 7, 100, 2, 128, 5],
    "many of one length": [16] * 40,
    "longer than a tile": [300, 2, 65],
    "many": np.random.default_rng(0).integers(1, 60, 500).tolist(),
}


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is known about any device."""
    runs_kernels.cache_clear()
    yield
    runs_kernels.cache_clear()


def number(lengths: list[int], device: str) -> tuple[Tensor, Tensor]:
    numbers = torch.repeat_interleave(torch.arange(len(lengths)) + 1, torch.tensor(lengths))
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    return numbers.to(device), starts.to(device)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(EPSILONS))
@pytest.mark.parametrize("head_size", [16, 24, 64, 96, 128])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_attention_among_short_documents_is_that_of_a_mask(
    lengths: list[int], head_size: int, dtype: torch.dtype
) -> None:
    from maskwright.models.kernels.short_documents import attend_plainly, attend_short_documents

    torch.manual_seed(0)
    numbers, starts = number(lengths, "cuda")
    together = torch.randn(len(numbers), 3, 2, head_size, device="cuda").to(dtype)
    apart = [one.contiguous() for one in together.transpose(1, 2).unbind(2)]
    for query, key, value in (together.unbind(1), apart):
        found = attend_short_documents(query, key, value, numbers, starts)
        expected = attend_plainly(query.double(), key.double(), value.double(), numbers)
        # a share is rounded before the product of values, and the sum of all once
        assert (found - expected).abs().max() <= 2 * EPSILONS[dtype] * value.abs().max()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(EPSILONS))
@pytest.mark.parametrize("width", [16, 384, 768, 1_000, 4_096])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_norm_of_a_sum_is_that_of_torch(width: int, has_bias: bool, dtype: torch.dtype) -> None:
    from maskwright.models.kernels.added_norm import add_and_normalize, add_and_normalize_plainly

    torch.manual_seed(0)
    for num_rows in (1, 7, 1_000):
        left, right = torch.randn(2, 1, num_rows, width, device="cuda").to(dtype)
        weight, bias = torch.randn(2, width, device="cuda").to(dtype)
        given = bias if has_bias else None
        found = add_and_normalize(left, right, weight, given, 1e-12)
        expected = add_and_normalize_plainly(
            left.double(), right.double(), weight.double(), None if given is None else given.double(), 1e-12
        )
        assert found.dtype == dtype
        # rounded once, at its end
        assert ((found - expected).abs() <= EPSILONS[dtype] * expected.abs() + 1e-5).all()


@pytest.mark.gpu
def test_they_run_on_this_gpu_without_a_warning(fresh: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runs_kernels(torch.device("cuda"))


@pytest.mark.parametrize("norm", [LayerNorm(16), RMSNorm(16)])
def test_elsewhere_the_norm_of_a_sum_is_the_norm_itself(norm: torch.nn.Module) -> None:
    left, right = torch.randn(2, 3, 16)
    with torch.inference_mode():
        assert torch.equal(layers.add_and_normalize(norm, left, right), norm(left + right))


@pytest.mark.parametrize(
    ("is_installed", "problem", "said"),
    [(False, "", "triton is not installed"), (True, "no such target", "no such target"), (True, "", None)],
)
def test_why_they_do_not_run_is_said_once(
    fresh: None, monkeypatch: pytest.MonkeyPatch, is_installed: bool, problem: str, said: str | None
) -> None:
    spec = importlib.util.find_spec("json") if is_installed else None
    monkeypatch.setattr(availability, "find_spec", lambda name: spec)
    monkeypatch.setattr(availability, "_find_problem", lambda device: problem)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [runs_kernels(torch.device("cuda")) for _ in range(2)]
    assert answers == [said is None] * 2
    assert [str(one.message) for one in caught] == (
        []
        if said is None
        else [f"our kernels for short texts do not run here ({said}); torch's are used, which are slower"]
    )
    assert all(one.category is InputWarning for one in caught)
    assert not runs_kernels(torch.device("cpu"))
