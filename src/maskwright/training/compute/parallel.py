"""One model on one process, replicated on many (DDP) or sharded over them (FSDP2), behind one interface.

The loss is a sum over this process's share of the batch; gradients come out as the mean over processes, so callers
multiply by the number of processes and divide by the global count.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from maskwright.batch import Questions
from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives.loss import LossSums
from maskwright.objectives.objective import Objective
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World, distribute_like, gather_whole

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class ObjectiveModule(nn.Module):
    """A model's objective as a forward pass, which DDP and FSDP hook into; the result is a tuple of tensors, as they
    require.
    """

    def __init__(self, model: Objective, precision: Precision) -> None:
        super().__init__()
        self.model = model
        self.precision = precision

    def forward(self, questions: Questions) -> tuple[Tensor, Tensor, Tensor]:
        with self.precision.autocast(questions.labels.device):
            sums = self.model.loss_sums(questions)
        return sums.losses, sums.counts, sums.figures


class _OwnedResults(ObjectiveModule):
    """FSDP hooks into the results, which must not be views of other tensors for that."""

    def forward(self, questions: Questions) -> tuple[Tensor, Tensor, Tensor]:
        losses, counts, figures = super().forward(questions)
        return losses.clone(), counts.clone(), figures.clone()


class Alone:
    """The model as it is, in one process."""

    def __init__(self, model: Objective, precision: Precision) -> None:
        self.model = model
        self._core = ObjectiveModule(model, precision)
        self._objective: nn.Module = self._core

    @property
    def trained(self) -> nn.Module:
        """The module whose parameters the optimizer steps; names as in the model."""
        return self.model

    @property
    def writes_parts(self) -> bool:
        """Whether every process writes what it has of a checkpoint."""
        return False

    def use(self, precision: Precision) -> None:
        self._core.precision = precision

    def loss_sums(self, questions: Questions) -> LossSums:
        return LossSums(*self._objective(questions))

    def accumulating(self) -> AbstractContextManager[None]:
        """Inside the block, gradients accumulate locally and are not exchanged."""
        return nullcontext()

    def gather(self) -> None:
        """Copy the trained weights into `model`; all processes must call this together."""

    def scatter(self) -> None:
        """Copy the weights of `model` into the trained module."""

    def train(self) -> None:
        self.trained.train()


class Replicated(Alone):
    """A copy in every process (DDP); gradients are exchanged during the backward pass."""

    def __init__(self, model: Objective, precision: Precision, gradient_dtype: torch.dtype) -> None:
        super().__init__(model, precision)
        # A foreign encoder may have parts that the objective does not use, such as a pooler.
        has_unused = not isinstance(model.encoder, PackedEncoder)
        self._replica = DistributedDataParallel(
            self._objective, find_unused_parameters=has_unused, gradient_as_bucket_view=True
        )
        self._objective = self._replica
        if gradient_dtype == torch.bfloat16:
            self._replica.register_comm_hook(None, lambda state, bucket: _average_in_bf16(bucket))

    def accumulating(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()


def _average_in_bf16(bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """As torch's `bf16_compress_hook`, which DDP refuses over gloo."""
    gradients = bucket.buffer()
    sent = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    exchange = dist.all_reduce(sent, async_op=True).get_future()
    return exchange.then(lambda done: gradients.copy_(done.value()[0]))


class Sharded(Alone):
    """FSDP2: every process has a shard of all weights, gradients and optimizer state; `model` is whole, on the CPU."""

    def __init__(
        self,
        model: Objective,
        precision: Precision,
        world: World,
        device: torch.device,
        gradient_dtype: torch.dtype,
    ) -> None:
        # Imported here, because only sharded runs pay the second that it takes.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        super().__init__(model.cpu(), precision)
        self._sharded_model = copy.deepcopy(model).to(device)
        self._mesh = init_device_mesh(device.type, (world.size,))
        self._core = _OwnedResults(self._sharded_model, precision)
        policy = MixedPrecisionPolicy(reduce_dtype=gradient_dtype)
        for part in (self._sharded_model.encoder, *self._sharded_model.other_encoders()):
            for layer in getattr(part, "layers", ()):
                fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        fully_shard(self._core, mesh=self._mesh, mp_policy=policy)
        self._objective = self._core

    @property
    def trained(self) -> nn.Module:
        return self._sharded_model

    @property
    def writes_parts(self) -> bool:
        return self.model.is_written_as_is

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        from torch.distributed.fsdp import FSDPModule

        assert isinstance(self._objective, FSDPModule)
        self._objective.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._objective.set_requires_gradient_sync(True)

    @torch.no_grad()
    def gather(self) -> None:
        whole = self.model.state_dict()
        for name, part in self._sharded_model.state_dict().items():
            whole[name].copy_(gather_whole(part))

    @torch.no_grad()
    def scatter(self) -> None:
        whole = self.model.state_dict()
        for name, part in self._sharded_model.state_dict().items():
            part.copy_(distribute_like(whole[name].to(part.device), part))


def place_model(
    model: Objective,
    precision: Precision,
    world: World,
    device: torch.device,
    parallel: Literal["ddp", "fsdp"],
    gradient_dtype: Literal["fp32", "bf16"],
) -> Alone:
    """Move a model to its device, and replicate or shard it if there are several processes."""
    dtype = torch.bfloat16 if gradient_dtype == "bf16" else torch.float32
    if world.size > 1 and parallel == "fsdp":
        if device.type == "cuda" and dist.get_backend() == dist.Backend.GLOO:
            raise InputError(
                "training.parallel=fsdp needs a GPU for each process, and here some share one; start one process per"
                " GPU, or use ddp"
            )
        return Sharded(model, precision, world, device, dtype)
    model.to(device)
    return Replicated(model, precision, dtype) if world.size > 1 else Alone(model, precision)
