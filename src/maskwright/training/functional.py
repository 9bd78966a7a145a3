"""The base of our own optimizers: a step is a pure function of one parameter, its gradient and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from maskwright.training.skipping import resolve_skip, select

State = dict[str, Tensor]
Group = dict[str, Any]

# Parameters of one shape are stepped as a stack: an encoder has hundreds of parameters and a dozen shapes, and it is
# the number of calls that takes the time on GPUs. Stacks are copies, so their size is bounded (here 128 MB in fp32).
_MAX_STACK_ELEMENTS = 2**25


class FunctionalOptimizer(torch.optim.Optimizer, ABC):
    """Subclasses name their state, which starts at zero, and compute a step; this class stores its results.

    Parameters may be in parts over processes: elementwise operations then work on the parts, and `compute_square_sum`
    on the whole. Nothing is read from the device.
    """

    per_element: ClassVar[tuple[str, ...]]
    per_tensor: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        """The next parameter and state; the arguments stay as they are."""

    @property
    def quantities(self) -> tuple[str, ...]:
        return (*self.per_element, *self.per_tensor)

    @torch.no_grad()
    def step(self, closure: None = None, skip: Tensor | None = None) -> None:  # type: ignore[override]
        """Step, unless `skip` (0-dim, on the parameters' device) is 1: then parameters and state keep their values."""
        is_skipped = resolve_skip(skip)
        if is_skipped is True:
            return
        for group in self.param_groups:
            for params in _gather_alike(param for param in group["params"] if param.grad is not None):
                self._step_alike(params, group, is_skipped)

    def _step_alike(self, params: list[Tensor], group: Group, is_skipped: bool | Tensor) -> None:
        advance = partial(self._advance, group=group, is_skipped=is_skipped)
        grads = [param.grad for param in params if param.grad is not None]
        states = [self._find_state(param) for param in params]
        if len(params) == 1:
            param, state = advance(params[0], grads[0], states[0])
            params[0].copy_(param)
            for quantity in self.quantities:
                states[0][quantity].copy_(state[quantity])
            return
        stored = {quantity: [state[quantity] for state in states] for quantity in self.quantities}
        stacked = {quantity: torch.stack(values) for quantity, values in stored.items()}
        new_params, new_states = torch.vmap(advance)(torch.stack(params), torch.stack(grads), stacked)
        torch._foreach_copy_(params, new_params.unbind())
        for quantity, values in stored.items():
            torch._foreach_copy_(values, new_states[quantity].unbind())

    def _advance(
        self, param: Tensor, grad: Tensor, state: State, group: Group, is_skipped: bool | Tensor
    ) -> tuple[Tensor, State]:
        new_param, new_state = self.compute_step(param, grad, state, group)
        kept = {quantity: select(is_skipped, state[quantity], new) for quantity, new in new_state.items()}
        return select(is_skipped, param, new_param), kept

    def _find_state(self, param: Tensor) -> State:
        state = self.state[param]
        if not state:
            for quantity in self.per_element:
                state[quantity] = torch.zeros_like(param)
            for quantity in self.per_tensor:
                state[quantity] = torch.zeros((), dtype=torch.float64, device=param.device)
        return state


def compute_bias_correction(beta: float, step: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - beta^step, the weight that a running mean from zero has gathered; `step` is fp64, as the power is near 1."""
    return (1 - beta**step).to(dtype)


def _gather_alike(params: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one kind, as many as a stack may hold; those in parts over processes come alone."""
    alike: dict[object, list[Tensor]] = defaultdict(list)
    for param in params:
        alike[param if isinstance(param, DTensor) else (param.shape, param.dtype, param.device)].append(param)
    for members in alike.values():
        size = max(1, _MAX_STACK_ELEMENTS // max(1, members[0].numel()))
        for start in range(0, len(members), size):
            yield members[start : start + size]
