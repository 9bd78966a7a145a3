"""All optimizers except Muon; each can skip a step by a flag on the device, without synchronisation.

Our own share a base class: a step is a pure function of one parameter, its gradient and its state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from maskwright.objectives.loss import find_sum_dtype
from maskwright.training.distributed.world import compute_square_sum, is_sharded


def resolve_skip(skip: Tensor | None) -> bool | Tensor:
    """Whether to skip a step: a bool on the CPU, elsewhere a tensor for `select`."""
    if skip is None:
        return False
    return bool(skip) if is_on_host(skip) else skip.bool()


def is_on_host(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu"


def select(is_skipped: bool | Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The value after a step: the old one where the step is skipped."""
    if isinstance(is_skipped, Tensor):
        return torch.where(is_skipped, old, new)
    return old if is_skipped else new


State = dict[str, Tensor]
Group = dict[str, Any]

# Parameters of one shape are stepped as a stack: an encoder has hundreds of parameters and a dozen shapes, and it is
# the number of calls that takes the time on GPUs. Stacks are copies, so their size is bounded (here 128 MB in fp32).
_MAX_STACK_ELEMENTS = 2**25


class FunctionalOptimizer(torch.optim.Optimizer, ABC):
    """Subclasses name their settings and state, and compute a step; this class keeps both.

    `settings` are the defaults of what a subclass takes beside `lr` and `weight_decay`. State starts at zero.
    Parameters may be sharded over processes: elementwise operations then work on the shards, and `compute_square_sum`
    on the whole. Nothing is read from the device.
    """

    settings: ClassVar[dict[str, float]]
    per_element: ClassVar[tuple[str, ...]]
    per_tensor: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: ParamsT, lr: float, weight_decay: float = 0.0, **settings: float) -> None:
        if unknown := settings.keys() - self.settings.keys():
            raise TypeError(f"{type(self).__name__} takes {', '.join(self.settings)}, not {', '.join(sorted(unknown))}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **self.settings, **settings})

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
                state[quantity] = torch.zeros((), dtype=find_sum_dtype(param.device), device=param.device)
        return state


def compute_bias_correction(beta: float, step: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - beta^step, the weight that a running mean from zero has gathered; `step` is fp64, as the power is near 1."""
    return (1 - beta**step).to(dtype)


def _gather_alike(params: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters of one shape, dtype and device, as many as a stack may hold; sharded ones come alone."""
    alike: dict[object, list[Tensor]] = defaultdict(list)
    for param in params:
        alike[param if is_sharded(param) else (param.shape, param.dtype, param.device)].append(param)
    for members in alike.values():
        size = max(1, _MAX_STACK_ELEMENTS // max(1, members[0].numel()))
        for start in range(0, len(members), size):
            yield members[start : start + size]


class FusedAdamW(torch.optim.AdamW):
    """torch's fused AdamW; the kernel reads the flag by itself, under the names that torch's GradScaler uses."""

    quantities: ClassVar[tuple[str, ...]] = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(params, lr, (beta1, beta2), epsilon, weight_decay, fused=True)

    def step(self, closure: None = None, skip: Tensor | None = None) -> None:  # type: ignore[override]
        """Step, unless `skip` (0-dim, on the parameters' device) is 1: then parameters and state keep their values."""
        self.grad_scale = None
        self.found_inf = skip
        super().step()


class StableAdamW(FunctionalOptimizer):
    """AdamW whose step shrinks where the squared gradient outruns its mean (Wortsman et al. 2023, alg. 2).

    Each tensor's learning rate is divided by the RMS of gradient / sqrt(mean square), where that exceeds 1.
    """

    settings: ClassVar = {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6}
    per_element = ("exp_avg", "exp_avg_sq")
    per_tensor = ("step",)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        step = state["step"] + 1
        mean = torch.lerp(state["exp_avg"], grad, _compute_share(group["beta1"], step, grad.dtype))
        mean_square = torch.lerp(state["exp_avg_sq"], grad.square(), _compute_share(group["beta2"], step, grad.dtype))
        root = mean_square.sqrt()
        rms = (compute_square_sum(grad / root.clamp(min=group["epsilon"])) / param.numel()).sqrt()
        rate = group["lr"] / rms.clamp(min=1.0)
        update = mean / (root + group["epsilon"]) + group["weight_decay"] * param
        return param - rate * update, {"exp_avg": mean, "exp_avg_sq": mean_square, "step": step}


def _compute_share(beta: float, step: Tensor, dtype: torch.dtype) -> Tensor:
    """What a gradient counts in a running mean that is unbiased at every step: all at the first, 1 - beta in the end.

    The paper's corrected beta, beta (1 - beta^(t-1)) / (1 - beta^t), is 1 minus this.
    """
    return (1 - beta) / compute_bias_correction(beta, step, dtype)


class Lamb(FunctionalOptimizer):
    """Adam's direction, with a step in proportion to the size of each weight matrix (You et al. 2019, alg. 2).

    The update of a matrix is scaled to the matrix's norm; vectors take it as it is, where the paper scales all.
    """

    settings: ClassVar = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}
    per_element = ("exp_avg", "exp_avg_sq")
    per_tensor = ("step",)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        step = state["step"] + 1
        mean = torch.lerp(state["exp_avg"], grad, 1 - beta1)
        mean_square = torch.lerp(state["exp_avg_sq"], grad.square(), 1 - beta2)
        unbiased_mean = mean / compute_bias_correction(beta1, step, grad.dtype)
        unbiased_root = (mean_square / compute_bias_correction(beta2, step, grad.dtype)).sqrt()
        update = unbiased_mean / (unbiased_root + group["epsilon"]) + group["weight_decay"] * param
        rate = group["lr"] * _compute_trust(param, update) if param.ndim > 1 else group["lr"]
        return param - rate * update, {"exp_avg": mean, "exp_avg_sq": mean_square, "step": step}


def _compute_trust(param: Tensor, update: Tensor) -> Tensor:
    """The parameter's norm over the update's; 1 where either is 0."""
    param_norm, update_norm = compute_square_sum(param).sqrt(), compute_square_sum(update).sqrt()
    return torch.where((param_norm > 0) & (update_norm > 0), param_norm / update_norm, 1.0)


class Lion(FunctionalOptimizer):
    """The sign of a momentum, every weight by the same amount (Chen et al. 2023, alg. 2).

    Wants learning rates 3 to 10 times smaller than AdamW's, and weight decay larger by as much (section 5).
    """

    settings: ClassVar = {"beta1": 0.9, "beta2": 0.99}
    per_element = ("exp_avg",)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        direction = torch.lerp(state["exp_avg"], grad, 1 - beta1).sign()
        new_param = param - group["lr"] * (direction + group["weight_decay"] * param)
        return new_param, {"exp_avg": torch.lerp(state["exp_avg"], grad, 1 - beta2)}


class NovoGrad(FunctionalOptimizer):
    """Momentum of gradients that are normalised tensor by tensor (Ginsburg et al. 2019, alg. 1).

    The second moment is one number per tensor, the mean squared norm of its gradient; it starts with the first.
    """

    settings: ClassVar = {"beta1": 0.95, "beta2": 0.98, "epsilon": 1e-8}
    per_element = ("momentum_buffer",)
    per_tensor = ("square_norm", "step")

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        beta1, beta2 = group["beta1"], group["beta2"]
        now = compute_square_sum(grad)
        square_norm = torch.where(state["step"] == 0, now, beta2 * state["square_norm"] + (1 - beta2) * now)
        normalized = grad / (square_norm.sqrt() + group["epsilon"]).to(grad.dtype)
        momentum = beta1 * state["momentum_buffer"] + normalized + group["weight_decay"] * param
        new_state = {"momentum_buffer": momentum, "square_norm": square_norm, "step": state["step"] + 1}
        return param - group["lr"] * momentum, new_state


class Sgd(FunctionalOptimizer):
    """Gradient descent with momentum, as torch.optim.SGD computes it; weight decay is added to the gradient.

    torch's fused version knows no sharded tensors, and starts with an uninitialised momentum when its first step is
    skipped; its other versions cannot skip a step at all.
    """

    settings: ClassVar = {"momentum": 0.9}
    per_element = ("momentum_buffer",)

    def compute_step(self, param: Tensor, grad: Tensor, state: State, group: Group) -> tuple[Tensor, State]:
        momentum = group["momentum"] * state["momentum_buffer"] + grad + group["weight_decay"] * param
        return param - group["lr"] * momentum, {"momentum_buffer": momentum}
