"""The processes that train one model together: rank, sums over all processes, sharded tensors, agreement to stop.

`torchrun` starts the processes and names them in the environment; without it there is a world of one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from maskwright.errors import FollowerError, InputError, InputWarning, LostProcessError, RunError
from maskwright.models.files.tensor_parts import StoredTensors, TensorPart
from maskwright.training.distributed.liveness import Liveness

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Result = TypeVar("Result")
_COLLECTIVE_TIMEOUT = timedelta(hours=1)
"""Long, because `Liveness` detects dead processes; slow work of one process is no failure."""
_LOOK_S = 0.05


@dataclass(frozen=True)
class World:
    """This process's rank among all processes, and their communication."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    control: dist.ProcessGroup | None = None
    """A group on the CPU for small values, so that GPUs need not be waited for."""
    liveness: Liveness | None = None
    notes: PrefixStore | None = None
    """Where processes leave notes for each other, which takes no collective and so goes on beside training."""

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place, without synchronising the device."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_facts(self, facts: list[float]) -> list[float]:
        """The sums over all processes of a few numbers on the CPU."""
        if self.size == 1:
            return facts
        tensor = torch.tensor(facts, dtype=torch.float64)
        dist.all_reduce(tensor, group=self.control)
        return [float(fact) for fact in tensor]

    def main_first(self, work: Callable[[], Result]) -> Result:
        """Run the same code in all processes, in the main one first; if it fails there, the others do not start."""
        if not self.is_main and self.sum_facts([0.0])[0]:
            raise FollowerError("the main process could not begin")
        try:
            result = work()
        except BaseException:
            if self.is_main:
                self.sum_facts([1.0])
            raise
        if self.is_main:
            self.sum_facts([0.0])
        return result

    def leave_note(self, topic: str, note: Any) -> None:
        """For the main process, which reads one from every process."""
        assert self.notes is not None
        self.notes.set(f"{topic}/{self.rank}", json.dumps(note))

    def read_notes(self, topic: str) -> list[Any]:
        """Wait for the notes of all processes, this one's among them; a `RunError` if one of them ends before."""
        assert self.notes is not None
        keys = [f"{topic}/{rank}" for rank in range(self.size)]
        while not self.notes.check(keys):
            gone = None if self.liveness is None else self.liveness.find_gone()
            if gone is not None and not self.notes.check(keys):
                raise RunError(gone)
            time.sleep(_LOOK_S)
        return [json.loads(self.notes.get(key)) for key in keys]

    @contextmanager
    def naming_the_departed(self) -> Iterator[None]:
        """Inside the block, a communication failure caused by a dead process raises an error that names the process."""
        try:
            yield
        except RuntimeError as error:
            if self.liveness is None or not _is_communication_failure(error):
                raise
            raise _name_departed(self.liveness) from error


def _name_departed(liveness: Liveness) -> RunError:
    departed, has_died = liveness.find_departed()
    kind = LostProcessError if has_died else RunError
    return kind(f"{departed}, so the run ends here; the same command resumes it")


def find_dead_process() -> LostProcessError | None:
    """After SIGTERM: the process whose death may be the reason, because launchers then end the others."""
    liveness = _Membership.liveness
    dead = None if liveness is None else liveness.find_dead()
    return None if dead is None else LostProcessError(f"{dead}, so the run ends here; the same command resumes it")


def describe_missing_process() -> str | None:
    """The process that died or never joined, without waiting; for a process that hangs."""
    return None if _Membership.liveness is None else _Membership.liveness.describe_missing()


def _is_communication_failure(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, dist.DistError) or "gloo" in text or "NCCL" in text or "Connection" in text


def is_launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_main_process() -> bool:
    """Whether this process is, or will be, the one that writes; known before the processes are connected."""
    return int(os.environ.get("RANK", "0")) == 0


class _Membership:
    """The world this process is in."""

    world = World()
    liveness: Liveness | None = None
    """Set before the world is, because connecting to the others may hang."""


def join_world(on_gpu: bool, silence_limit_s: float = 60.0) -> World:
    """Connect to the other processes, once; without a launcher there are none."""
    if _Membership.world.size == 1 and is_launched():
        _Membership.world = _meet(on_gpu, silence_limit_s)
    return _Membership.world


def leave_world() -> None:
    """Disconnect from the other processes; afterwards the world has one process."""
    world, _Membership.world, _Membership.liveness = _Membership.world, World(), None
    if world.liveness is not None:
        world.liveness.stop()
    if world.size > 1:
        dist.destroy_process_group()


def _meet(on_gpu: bool, silence_limit_s: float) -> World:
    store, rank, size = next(rendezvous("env://"))
    attempt = _name_attempt()
    shares_gpu = on_gpu and shares_gpus()
    if on_gpu:
        torch.cuda.set_device(choose_gpu())
    if shares_gpu:
        warnings.warn(
            "there are more processes than GPUs on this machine, so some share one, and all exchange gradients through"
            " the CPU (NCCL needs a GPU for each); start one process per GPU",
            InputWarning,
            stacklevel=2,
        )
    liveness = Liveness(PrefixStore(f"{attempt}/liveness", store.clone()), rank, size, silence_limit_s)
    _Membership.liveness = liveness
    backend = "nccl" if on_gpu and not shares_gpu else "gloo"
    with World(liveness=liveness).naming_the_departed():
        dist.init_process_group(
            backend,
            store=PrefixStore(f"{attempt}/group", store),
            rank=rank,
            world_size=size,
            timeout=_COLLECTIVE_TIMEOUT,
        )
        control = dist.new_group(backend="gloo", timeout=_COLLECTIVE_TIMEOUT) if backend == "nccl" else None
    return World(rank, size, local_rank(), control, liveness, PrefixStore(f"{attempt}/notes", store.clone()))


def _name_attempt() -> str:
    """torchrun's own store outlives the processes that it starts again, with what the dead ones said."""
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}" if is_kept else "attempt"


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def shares_gpus() -> bool:
    """Whether the launcher started more processes on this machine than it has GPUs."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()


def choose_gpu() -> int:
    """The GPU of this process; the processes of a machine take turns if there are fewer."""
    return local_rank() % torch.cuda.device_count() if shares_gpus() else local_rank()


def is_sharded(tensor: object) -> TypeGuard[DTensor]:
    """Asked without an import of sharding, which takes a second; where nobody has imported it nothing is sharded."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def gather_whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; for a sharded one, all processes call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def distribute_like(whole: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a tensor that every process has whole."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def find_rows(sharded: DTensor) -> tuple[int, int]:
    """The first of this process's rows, and the one behind its last."""
    height = -(-sharded.shape[0] // sharded.device_mesh.size())
    first = min(sharded.device_mesh.get_local_rank() * height, sharded.shape[0])
    return first, min(first + height, sharded.shape[0])


def take_part(tensor: Tensor, is_main: bool) -> TensorPart | None:
    """This process's rows of a sharded tensor; of any other the main process has the whole, and the others nothing."""
    if not is_sharded(tensor):
        return TensorPart(tensor) if is_main else None
    first, end = find_rows(tensor)
    rows = tensor.to_local()
    assert len(rows) == end - first
    return TensorPart(rows, first, tensor.shape[0])


def read_like(stored: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """A stored tensor, sharded and on a device like another one; a number is whole everywhere.

    Of files only this process's rows are read.
    """
    if not isinstance(stored, StoredTensors) or not is_sharded(like) or not stored.infos[name].shape:
        whole = stored[name].to(like.device)
        return distribute_like(whole, like) if whole.ndim else whole
    from torch.distributed.tensor import DTensor

    if stored.infos[name].shape != tuple(like.shape):
        raise InputError(
            f"{stored.path} has '{name}' of shape {stored.infos[name].shape}, expected {tuple(like.shape)}; continue"
            " with the model the run was started with"
        )
    rows = stored.read_rows(name, *find_rows(like)).to(like.device)
    return DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def compute_square_sum(tensor: Tensor) -> Tensor:
    """The squared norm of the whole tensor, as a plain tensor without dimensions."""
    return gather_whole(tensor.square().sum())


@dataclass(frozen=True)
class Verdict:
    """What all processes must agree on before the next step: the elapsed time, and whether to stop."""

    elapsed_s: float
    """By the main process's clock, since schedules may follow it."""
    stop: bool
    signal: int
    """The signal that asks the run to end, or 0."""


def agree(world: World, elapsed_s: float, stop: bool, received: int) -> Verdict:
    """If one process wants to stop or received a signal, all of them stop."""
    if world.size == 1:
        return Verdict(elapsed_s, stop, received)
    elapsed, num_stops, num_terminations, num_interrupts = world.sum_facts(
        [
            elapsed_s if world.is_main else 0.0,
            float(stop),
            float(received == signal.SIGTERM),
            float(received == signal.SIGINT),
        ]
    )
    agreed = signal.SIGTERM if num_terminations else signal.SIGINT if num_interrupts else 0
    return Verdict(elapsed, num_stops > 0, int(agreed))
