"""Which attention kernels a piece of work runs, by watching it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PREFIX, _SUFFIX = "_scaled_dot_product_", "_attention"


def watch_attention(work: Callable[[], object]) -> str:
    """The kernels' names; SDPA is torch's function, which gets a mask of the documents and chooses among kernels.

    What is compiled runs as it was written, since compiled code cannot be watched.
    """
    with torch.compiler.set_stance("force_eager"), _Watch() as watch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        work()
    return ", ".join(sorted(watch.kernels)) or "plain products, without a fused kernel"


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        if "attention" in name and "backward" not in name:
            self.kernels.add(name.replace(_PREFIX, "SDPA ").replace(_SUFFIX, ""))
        return func(*args, **(kwargs or {}))
