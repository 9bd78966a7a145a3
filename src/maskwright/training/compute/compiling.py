"""Whether a run compiles its model, multiplies in fp8 and replays CUDA graphs; and the graphs of a pass.

A captured forward and backward pass is one CUDA graph, which a GPU replays without waiting for Python.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch, Questions
from maskwright.errors import InputError, InputWarning
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.layers import multiply_in_fp8
from maskwright.objectives.objective import Objective
from maskwright.sections.training import TrainingConfig
from maskwright.training.distributed.world import World


def should_record(model: Objective, training: TrainingConfig, device: torch.device, world: World) -> bool:
    """Whether to capture CUDA graphs: in one process on a GPU, of a model whose pass never synchronises with the host.

    Activation checkpointing reads the generator's state between its two passes, which is impossible inside a graph.
    """
    is_alone = device.type == "cuda" and world.size == 1
    is_meant = training.compile is not False
    return is_alone and is_meant and model.is_recordable and not training.activation_checkpointing


def should_compile(
    training: TrainingConfig, device: torch.device, world: World, *, varies_in_shape: bool = False
) -> bool:
    """As configured; by default on GPUs that support it, where batches share a shape.

    Layers sharded by FSDP are not compiled.
    """
    is_cut = world.size > 1 and training.parallel == "fsdp"
    lacks_triton = device.type == "cuda" and find_spec("triton") is None
    if training.compile and device.type == "mps":
        warnings.warn(
            "training.compile is for NVIDIA GPUs and CPUs; on this Apple GPU the layers run as they are",
            InputWarning,
            stacklevel=2,
        )
        return False
    if training.compile is None:
        return device.type == "cuda" and not varies_in_shape and not is_cut and not lacks_triton
    if training.compile and is_cut:
        raise InputError("training.compile does not go with training.parallel=fsdp; use ddp, or leave it out")
    if training.compile and lacks_triton:
        raise InputError("training.compile needs triton on a GPU, which is not installed; install it, or leave it out")
    return training.compile


def use_fp8_products(model: Objective, device: torch.device, is_compiled: bool) -> None:
    if not is_compiled:
        raise InputError(
            "training.precision=fp8 is for compiled layers; give training.compile=true, and leave out fsdp"
        )
    if not multiply_in_fp8(model, device):
        raise InputError("training.precision=fp8 is for Maskwright's own encoders, which this is not; use bf16")


_NUM_WARM_UP = 3
MOST_GRAPHS = 12
"""Shapes of batches that are captured, where batches vary in shape."""
_SLOTS_STEP = 24
"""With a falling mask ratio the graph is captured again only when 1 / this of the tokens are idle slots."""
_ALIGNMENT = 64
"""The number of slots is a multiple of this, because matrix products with odd sizes are slow."""
Differentiate = Callable[[Questions, Tensor], Tensor]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    grads: list[Tensor | None]
    sums: Tensor


class GraphedPass:
    """Captures `differentiate` as a CUDA graph for one batch shape; another shape that comes twice in a row replaces
    it. With `most_graphs` above 1 so many shapes are captured, each when it comes for the second time.

    `differentiate` takes questions and the factors of its losses, sets the parameters' gradients and returns sums.
    A single graph has the gradients in its own memory. Several share one memory pool, and copy the gradients to tensors
    that they share too. Gradients are valid until the next call.
    """

    def __init__(self, differentiate: Differentiate, params: Iterable[nn.Parameter], most_graphs: int = 1) -> None:
        self._differentiate = differentiate
        self._params = [param for param in params if param.requires_grad]
        self._most_graphs = most_graphs
        self._recordings: dict[Key, _Recording] = {}
        """By the shapes and settings that they were captured for."""
        self._pool: Any = None
        self._shared_grads: dict[nn.Parameter, Tensor] = {}
        self._last_key: Key | None = None
        self._seen: set[Key] = set()
        self._num_slots: dict[torch.Size, int] = {}

    def __call__(self, questions: Questions, factors: Tensor) -> Tensor:
        if isinstance(questions, CorruptedBatch):
            questions = self._settle_slots(questions)
        key = _describe(questions)
        is_wanted = self._is_wanted(key)
        if key not in self._recordings:
            if not is_wanted:
                return self._differentiate(questions, factors)
            if self._most_graphs == 1:
                self._recordings.clear()  # its memory is needed for the next one
            self._recordings[key] = self._record(questions, factors)
        recording = self._recordings[key]
        torch._foreach_copy_(recording.inputs, [*_list_tensors(questions), factors])
        recording.graph.replay()
        for param, grad in zip(self._params, recording.grads, strict=True):
            param.grad = grad
        return recording.sums

    def _is_wanted(self, key: Key) -> bool:
        """Whether a batch of this shape is worth a graph."""
        if self._most_graphs == 1:
            is_wanted = self._last_key in (None, key)
            self._last_key = key
            return is_wanted
        is_known = key in self._seen
        self._seen.add(key)
        return is_known and len(self._recordings) < self._most_graphs

    def _settle_slots(self, corrupted: CorruptedBatch) -> CorruptedBatch:
        """The previous number of slots if it is enough and not too large; else a new one, with room to grow."""
        shape, num_tokens, wanted = corrupted.labels.shape, corrupted.labels.numel(), corrupted.num_slots
        step = num_tokens // _SLOTS_STEP
        num_slots = self._num_slots.get(shape)
        if num_slots is None or not wanted <= num_slots <= wanted + step:
            room = 0 if num_slots is None or wanted < num_slots else step
            num_slots = self._num_slots[shape] = min(num_tokens, _round_up(wanted + room))
        return replace(corrupted, num_slots=num_slots)

    def _record(self, questions: Questions, factors: Tensor) -> _Recording:
        own, own_factors = _copy(questions), factors.clone()
        dropout_state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UP):
                self._clear_gradients()
                self._differentiate(own, own_factors)
        torch.cuda.current_stream().wait_stream(stream)
        self._prepare_sharing()
        self._clear_gradients()
        graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile: one reads data into pinned memory, one writes checkpoints.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            sums = self._differentiate(own, own_factors)
            self._share_gradients()
        torch.cuda.set_rng_state(dropout_state)  # the replay draws what a step without a recording would
        return _Recording(graph, [*_list_tensors(own), own_factors], [param.grad for param in self._params], sums)

    def _prepare_sharing(self) -> None:
        """Make room for the gradients that all graphs share, if there may be several."""
        if self._most_graphs == 1:
            return
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        for param in self._params:
            if param.grad is not None and param not in self._shared_grads:
                self._shared_grads[param] = torch.empty_like(param.grad)

    def _share_gradients(self) -> None:
        """Inside a capture: copy the gradients, so that the next graph may use their memory."""
        if self._most_graphs == 1:
            return
        params = [param for param in self._params if param.grad is not None]
        shared = [self._shared_grads[param] for param in params]
        torch._foreach_copy_(shared, [param.grad for param in params if param.grad is not None])
        for param, grad in zip(params, shared, strict=True):
            param.grad = grad

    def _clear_gradients(self) -> None:
        for param in self._params:
            param.grad = None


def _round_up(num_slots: int) -> int:
    return -(-num_slots // _ALIGNMENT) * _ALIGNMENT


def _describe(questions: Questions) -> Key:
    """Everything that a captured graph depends on: values that are no tensors, and the tensors' shapes and dtypes."""
    values = [value for part in (questions.batch, questions) for value in _list_fields(part).values()]
    return tuple(
        (value.shape, value.dtype) if isinstance(value, Tensor) else value
        for value in values
        if not isinstance(value, PackedBatch)
    )


def _list_tensors(questions: Questions) -> list[Tensor]:
    values = [*_list_fields(questions.batch).values(), *_list_fields(questions).values()]
    return [value for value in values if isinstance(value, Tensor)]


def _copy(questions: Questions) -> Questions:
    tensors: dict[str, Any] = {
        name: value.clone() for name, value in _list_fields(questions).items() if isinstance(value, Tensor)
    }
    return replace(questions, batch=questions.batch.map_fields(torch.clone), **tensors)


def _list_fields(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}
