"""Whether the kernels of this folder run here: Triton is installed and they give what their references give."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch

from maskwright.errors import InputWarning, describe_briefly

_TOLERANCE = 2.0**-6
"""Some roundings of bf16, of values around 1."""


@cache
def runs_kernels(device: torch.device) -> bool:
    """Tried once, on two documents; a warning says why they do not run."""
    if device.type != "cuda":
        return False
    problem = "triton is not installed" if find_spec("triton") is None else _find_problem(device)
    if problem:
        warnings.warn(
            f"our kernels for short texts do not run here ({problem}); torch's are used, which are slower",
            InputWarning,
            stacklevel=2,
        )
    return not problem


def _find_problem(device: torch.device) -> str:
    from maskwright.models.kernels.added_norm import add_and_normalize, add_and_normalize_plainly
    from maskwright.models.kernels.short_documents import attend_plainly, attend_short_documents

    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        query, key, value = torch.randn(3, 5, 2, 64, generator=generator).to(device, torch.bfloat16)
        numbers = torch.tensor([1, 1, 2, 2, 2], device=device)
        starts = torch.tensor([0, 2, 5], dtype=torch.int32, device=device)
        left, right = torch.randn(2, 5, 64, generator=generator).to(device, torch.bfloat16)
        ones = torch.ones(64, device=device, dtype=torch.bfloat16)
        try:
            attended = attend_short_documents(query, key, value, numbers, starts)
            normalized = add_and_normalize(left, right, ones, ones, 1e-5)
        except Exception as error:  # whatever a compiler of another version raises
            return describe_briefly(error)
        pairs = [
            (attended, attend_plainly(query, key, value, numbers)),
            (normalized, add_and_normalize_plainly(left, right, ones, ones, 1e-5)),
        ]
    are_near = all(torch.allclose(found, expected, _TOLERANCE, _TOLERANCE) for found, expected in pairs)
    return "" if are_near else "they give other results than their references"
