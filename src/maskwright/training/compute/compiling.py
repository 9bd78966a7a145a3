"""Whether a run compiles its model, multiplies in fp8 and replays CUDA graphs; and the graph of a pass.

A captured forward and backward pass is one CUDA graph, which a GPU replays without waiting for Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch, Questions
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.layers import multiply_in_fp8
from maskwright.objectives.objective import Objective
from maskwright.sections.training import TrainingConfig
from maskwright.training.distributed.world import World


def should_record(model: Objective, training: TrainingConfig, device: torch.device, world: World) -> bool:
    """Whether to capture CUDA graphs: for a compiled model in one process on a GPU whose pass never synchronises with
    the host.

    Activation checkpointing reads the generator's state between its two passes, which is impossible inside a graph.
    """
    is_alone = device.type == "cuda" and world.size == 1
    return is_alone and model.is_recordable and not training.activation_checkpointing


def should_compile(training: TrainingConfig, device: torch.device, world: World) -> bool:
    """As configured; by default on GPUs that support it. Layers sharded by FSDP are not compiled."""
    is_cut = world.size > 1 and training.parallel == "fsdp"
    lacks_triton = device.type == "cuda" and find_spec("triton") is None
    if training.compile is None:
        return device.type == "cuda" and not is_cut and not lacks_triton
    if training.compile and is_cut:
        raise InputError("training.compile does not go with training.parallel=fsdp; use ddp, or leave it out")
    if training.compile and lacks_triton:
        raise InputError("training.compile needs triton on a GPU, which is not installed; install it, or leave it out")
    return training.compile


def use_fp8_products(model: Objective, device: torch.device, is_compiled: bool) -> None:
    if not is_compiled:
        raise InputError("training.precision=fp8 is for compiled layers; leave out training.compile=false and fsdp")
    if not multiply_in_fp8(model, device):
        raise InputError("training.precision=fp8 is for Maskwright's own encoders, which this is not; use bf16")


_NUM_WARM_UP = 3
_SLOTS_STEP = 24
"""With a falling mask ratio the graph is captured again only when 1 / this of the tokens are idle slots."""
_ALIGNMENT = 64
"""The number of slots is a multiple of this, because matrix products with odd sizes are slow."""
Differentiate = Callable[[Questions, Tensor], Tensor]


@dataclass(frozen=True)
class _Recording:
    key: tuple[Any, ...]
    """The shapes and settings that it was captured for."""
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    grads: list[Tensor | None]
    sums: Tensor


class GraphedPass:
    """Captures `differentiate` as a CUDA graph for one batch shape; another shape that comes twice in a row replaces
    it.

    `differentiate` takes questions and the factors of its losses, sets the parameters' gradients and returns sums.
    Gradients live in the graph's own memory and are valid until the next call.
    """

    def __init__(self, differentiate: Differentiate, params: Iterable[nn.Parameter]) -> None:
        self._differentiate = differentiate
        self._params = [param for param in params if param.requires_grad]
        self._recording: _Recording | None = None
        self._last_key: tuple[Any, ...] | None = None
        self._num_slots: dict[torch.Size, int] = {}

    def __call__(self, questions: Questions, factors: Tensor) -> Tensor:
        if isinstance(questions, CorruptedBatch):
            questions = self._settle_slots(questions)
        key = _describe(questions)
        is_wanted = self._last_key in (None, key)
        self._last_key = key
        if self._recording is None or self._recording.key != key:
            if not is_wanted:
                return self._differentiate(questions, factors)
            self._recording = None  # its memory is needed for the next one
            self._recording = self._record(key, questions, factors)
        recording = self._recording
        torch._foreach_copy_(recording.inputs, [*_list_tensors(questions), factors])
        recording.graph.replay()
        for param, grad in zip(self._params, recording.grads, strict=True):
            param.grad = grad
        return recording.sums

    def _settle_slots(self, corrupted: CorruptedBatch) -> CorruptedBatch:
        """The previous number of slots if it is enough and not too large; else a new one, with room to grow."""
        shape, num_tokens, wanted = corrupted.labels.shape, corrupted.labels.numel(), corrupted.num_slots
        step = num_tokens // _SLOTS_STEP
        num_slots = self._num_slots.get(shape)
        if num_slots is None or not wanted <= num_slots <= wanted + step:
            room = 0 if num_slots is None or wanted < num_slots else step
            num_slots = self._num_slots[shape] = min(num_tokens, _round_up(wanted + room))
        return replace(corrupted, num_slots=num_slots)

    def _record(self, key: tuple[Any, ...], questions: Questions, factors: Tensor) -> _Recording:
        own, own_factors = _copy(questions), factors.clone()
        dropout_state = torch.cuda.get_rng_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_NUM_WARM_UP):
                self._clear_gradients()
                self._differentiate(own, own_factors)
        torch.cuda.current_stream().wait_stream(stream)
        self._clear_gradients()
        graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile: one reads data into pinned memory, one writes checkpoints.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            sums = self._differentiate(own, own_factors)
        torch.cuda.set_rng_state(dropout_state)  # the replay draws what a step without a recording would
        return _Recording(key, graph, [*_list_tensors(own), own_factors], [param.grad for param in self._params], sums)

    def _clear_gradients(self) -> None:
        for param in self._params:
            param.grad = None


def _round_up(num_slots: int) -> int:
    return -(-num_slots // _ALIGNMENT) * _ALIGNMENT


def _describe(questions: Questions) -> tuple[Any, ...]:
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
