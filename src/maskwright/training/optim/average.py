"""An exponential moving average of the weights, which often evaluates better than the weights themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.training.distributed.world import gather_whole, read_like


class WeightAverage:
    """Follows a module's parameters; `decay` is the share that the average keeps of itself at a step.

    In the first steps of a run it keeps less, (1 + n) / (10 + n) after n steps; else the average of a short run would
    be mostly its initial weights.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._params = {name: param for name, param in module.named_parameters() if param.requires_grad}
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Restart the average from the current weights."""
        self._averages = {name: param.detach().clone() for name, param in self._params.items()}

    @torch.no_grad()
    def update(self, skip: Tensor, num_steps: int) -> None:
        """Move towards the weights, unless the step was skipped (`skip` 1); `num_steps` came before it."""
        kept = min(self._decay, (1 + num_steps) / (10 + num_steps))
        averages: list[Tensor] = list(self._averages.values())
        params: list[Tensor] = list(self._params.values())
        distances = torch._foreach_sub(params, averages)
        torch._foreach_mul_(distances, (1.0 - kept) * (1.0 - skip))
        torch._foreach_add_(averages, distances)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block, the module has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, param in self._params.items():
            weights = param.detach().clone()
            param.copy_(self._averages[name])
            self._averages[name].copy_(weights)

    @torch.no_grad()
    def adopt(self) -> None:
        """Replace the module's weights by their averages."""
        for name, param in self._params.items():
            param.copy_(self._averages[name])

    def tensors(self) -> dict[str, Tensor]:
        """Whole averages by parameter name; all processes must call this together."""
        return {name: gather_whole(average) for name, average in self._averages.items()}

    def own_tensors(self) -> dict[str, Tensor]:
        """As `tensors`, with sharded tensors as they are."""
        return dict(self._averages)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        if set(tensors) != set(self._averages):
            raise InputError(
                "the stored average of the weights is not of this model; resume with the model and the"
                " training.average_decay the run was started with"
            )
        for name, average in self._averages.items():
            average.copy_(read_like(tensors, name, average))
