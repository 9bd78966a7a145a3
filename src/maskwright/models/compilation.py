"""Layers as compiled kernels: each kind of layer is compiled once, however often a model has it.

Compiling layers rather than the whole model makes the wait before the first step short, and lets gradients of one layer
be exchanged while the next one is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def _call(layer: nn.Module, weights: dict[str, Tensor], inputs: tuple[Any, ...]) -> Any:
    return functional_call(layer, weights, inputs)


class LayerCompiler:
    """Runs layers on rows of one shape, that of the first batch; other shapes are not worth a compilation."""

    def __init__(self) -> None:
        self._shape: torch.Size | None = None
        self._call = torch.compile(_call, fullgraph=True, dynamic=False)

    def accepts(self, hidden: Tensor) -> bool:
        """Whether compiled layers run on these hidden states: in training, on rows of the first shape seen."""
        if not torch.is_grad_enabled():
            return False
        if self._shape is None:
            self._shape = hidden.shape
        return self._shape == hidden.shape

    def run(self, layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
        result: Tensor = self._call(layer, _cast_weights(layer, hidden.dtype), (hidden, *others))
        return result


def _cast_weights(layer: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """A layer's weights in the numbers it computes in, all cast by one kernel instead of one each."""
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    if all(weight.dtype == dtype for weight in weights.values()):
        return weights
    cast = _CastTogether.apply(dtype, *weights.values())  # type: ignore[no-untyped-call]
    return dict(zip(weights, cast, strict=True))


class _CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        return _copy_as(tensors, [dtype] * len(tensors))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_copy_as(grads, ctx.dtypes)


def _copy_as(tensors: tuple[Tensor, ...], dtypes: list[torch.dtype]) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)
