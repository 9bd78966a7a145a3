"""Compile layers: each kind of layer is compiled once, however many a model has.

Compiling layers instead of the whole model shortens the wait before the first step, and lets DDP exchange the gradients
of one layer while those of the next are computed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from maskwright.batch import DocumentBounds
from maskwright.errors import InputWarning, describe_briefly, is_out_of_memory

Result = TypeVar("Result")
_MOST_SHAPES = 4
_MOST_KERNELS = 64


def _call(layer: nn.Module, weights: dict[str, Tensor], inputs: tuple[Any, ...]) -> Any:
    return functional_call(layer, weights, inputs)


class LayerCompiler:
    """Runs compiled layers for the first shape of rows seen, and for a few others that come twice in a row.

    The last batch of an epoch, which is smaller, is not worth a compilation; batches that grow are.
    """

    def __init__(self) -> None:
        self._shapes: list[torch.Size] = []
        self._last: torch.Size | None = None
        # Kernels of all shapes, kinds of layers and models of a process are kept with the one function above.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_KERNELS)
        # Layers are small enough for DDP to exchange one while the next is computed; cutting them up further would fail
        # for FlexAttention.
        torch._dynamo.config.optimize_ddp = False
        self._call = torch.compile(_call, fullgraph=True, dynamic=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied model starts with a new compiler, since kernels cannot be copied."""
        return type(self), ()

    def see(self, hidden: Tensor) -> None:
        """Record the shape of the first layer's input in training."""
        is_wanted = not self._shapes or hidden.shape == self._last
        if is_wanted and hidden.shape not in self._shapes and len(self._shapes) < _MOST_SHAPES:
            self._shapes.append(hidden.shape)
        self._last = hidden.shape

    def accepts(self, hidden: Tensor) -> bool:
        """Whether compiled layers run on these hidden states."""
        return torch.is_grad_enabled() and hidden.shape in self._shapes

    def run(self, layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
        result: Tensor = self._call(layer, _cast_weights(layer, hidden.dtype), (hidden, *others))
        return result


class InferenceCompiler:
    """Runs layers compiled for flat rows of any length, once so many tokens have been read.

    Before that, for rows whose documents are shorter on average than `least_length`, and where the compiler cannot take
    a layer, which a warning says, they run as they are.
    """

    def __init__(self, tokens_before: int = 0, least_length: int = 0) -> None:
        self._tokens_left = tokens_before
        self._least_length = least_length
        self._is_meant = True
        self._has_failed = False
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_KERNELS)
        self._call = torch.compile(_call, fullgraph=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._tokens_left, self._least_length)

    def see(self, hidden: Tensor, bounds: DocumentBounds) -> None:
        """Count the tokens of a row (1, T, D) that is about to be read."""
        num_tokens, num_documents = hidden.shape[1], len(bounds.starts) - 1
        self._is_meant = num_tokens >= self._least_length * num_documents
        if self._is_meant:
            self._tokens_left -= num_tokens

    def run(self, layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
        result: Tensor
        if self._tokens_left > 0 or not self._is_meant or self._has_failed:
            result = layer(hidden, *others)
            return result
        for tensor, axis in [(hidden, 1), *(found for other in others for found in _list_dynamic(other))]:
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
        try:
            result = self._call(layer, dict(layer.named_parameters()), (hidden, *others))
        except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
            if is_out_of_memory(error):
                raise
            self._has_failed = True
            problem = describe_briefly(error)
        else:
            return result
        warnings.warn(
            f"the compiler cannot take a {type(layer).__name__} ({problem}); going on without compilation",
            InputWarning,
            stacklevel=2,
        )
        result = layer(hidden, *others)
        return result


def _list_dynamic(part: Any) -> list[tuple[Tensor, int]]:
    """Tensors beside the hidden states whose sizes change with the row: bounds of documents, and rotations."""
    bounds = getattr(part, "bounds", None)
    if bounds is not None:
        return [(bounds.starts, 0), (bounds.numbers, 0)]
    angles = (getattr(part, name, None) for name in ("cosines", "sines"))
    return [(one, one.ndim - 2) for one in angles if one is not None]


class FunctionCompiler:
    """Runs functions compiled, with dynamic lengths for all tensor inputs except the last `fixed` ones.

    A copied model starts with a new compiler.
    """

    def __init__(self) -> None:
        self._compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def run(self, function: Callable[..., Result], *inputs: Any, fixed: tuple[Any, ...] = ()) -> Result:
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function)
        for one in inputs:
            if isinstance(one, Tensor):  # said before the first size is compiled for, it saves compiling twice
                torch._dynamo.maybe_mark_dynamic(one, 0)
        result: Result = self._compiled[function](*inputs, *fixed)
        return result


def run_cast(layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
    """Run an uncompiled layer with all its weights cast by one kernel, as compiled ones are; autocast casts each."""
    result: Tensor = _call(layer, _cast_weights(layer, hidden.dtype), (hidden, *others))
    return result


def _cast_weights(layer: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """A layer's weights in its compute dtype, all cast by one kernel instead of one each, frozen ones by another."""
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    if all(weight.dtype == dtype for weight in weights.values()):
        return weights
    for is_trained in (True, False):  # together the frozen ones would get gradients as well
        names = [name for name, weight in weights.items() if weight.requires_grad is is_trained]
        if names:
            cast = _CastTogether.apply(dtype, *(weights[name] for name in names))  # type: ignore[no-untyped-call]
            weights |= zip(names, cast, strict=True)
    return weights


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
