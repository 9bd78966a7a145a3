"""How much memory a piece of work takes at its fullest moment, beyond what was there before."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def measure_peak(device: torch.device, work: Callable[[], object]) -> int:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.compiler.set_stance("force_eager"), _AllocationMeter() as meter:  # inside kernels nothing is seen
        work()
    return meter.peak


class _AllocationMeter(TorchDispatchMode):
    """Adds up the storages that operations make, until they are freed: a CPU's allocator keeps no such count.

    What a kernel takes and frees inside one operation is not seen.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._live = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Operations in place return what they were given.
        self._known.update(_storages((args, kwargs)))
        result = func(*args, **kwargs)
        for storage in _storages(result):
            if storage not in self._known:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage)
        size = storage.nbytes()
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._live -= size


def _storages(values: Any) -> Iterable[torch.UntypedStorage]:
    return (value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor))
