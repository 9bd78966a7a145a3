"""The memory that a run needs, and the memory that is available."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from maskwright.machine import read_machine_memory, read_process_memory
from maskwright.objectives.distillation import Student
from maskwright.runs.doctor.findings import Finding, format_bytes
from maskwright.training.engine import Engine
from maskwright.training.optim.algorithms import FunctionalOptimizer
from maskwright.training.optim.optimizers import AnyOptimizer, OptimizerSet

_TIGHT = 0.9


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes at the peak of a step."""

    weights: int
    optimizer: int
    gradients: int
    program: int = 0
    """The program and its text, where they share the device's memory with the model."""
    activations: int = 0
    """Activations with temporaries; only these depend on the size of a micro-batch."""
    tokens_at_a_time: int = 0

    @property
    def fixed(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.program

    @property
    def total(self) -> int:
        return self.fixed + self.activations


def estimate_fixed_need(engine: Engine) -> MemoryNeed:
    """Memory independent of the batch; averaged weights count as weights, and a teacher's."""
    trained = engine.placed.trained
    weights = count_bytes(trained) + (count_bytes(trained.teacher) if isinstance(trained, Student) else 0)
    gradients = sum(_size(param) for param in trained.parameters() if param.requires_grad)
    average = 0 if engine.average is None else gradients
    return MemoryNeed(
        weights=weights + average,
        optimizer=count_state_bytes(engine.optimizers),
        gradients=gradients,
        program=0 if engine.device.type == "cuda" else max(0, read_process_memory() - weights - average),
    )


def add_working_memory(need: MemoryNeed, working_bytes: int, tokens_at_a_time: int) -> MemoryNeed:
    """Add the measured memory of a step, including gradients."""
    activations = max(0, working_bytes - need.gradients)
    return replace(need, activations=activations, tokens_at_a_time=tokens_at_a_time)


def count_bytes(module: nn.Module) -> int:
    """Parameters and buffers, shared ones once."""
    return sum(_size(tensor) for tensor in (*module.parameters(), *module.buffers()))


def count_state_bytes(optimizers: OptimizerSet) -> int:
    """What the optimizers will keep from their first step on; numbers that are one to a parameter do not count."""
    return sum(
        _size(param) * _count_moments(optimizer)
        for optimizer in optimizers.optimizers
        for group in optimizer.param_groups
        for param in group["params"]
    )


def _count_moments(optimizer: AnyOptimizer) -> int:
    """Quantities of a parameter's own size."""
    if isinstance(optimizer, FunctionalOptimizer):
        return len(optimizer.per_element)
    return sum(quantity != "step" for quantity in optimizer.quantities)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def measure_capacity(device: torch.device) -> int:
    """Bytes of the device's memory that this process may use."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return read_machine_memory()


def check_fixed_need(need: MemoryNeed, capacity: int) -> Finding | None:
    """A problem if not even an empty batch would fit, before a step is tried."""
    if need.fixed <= capacity:
        return None
    text = f"{_describe(need)} are more than the {format_bytes(capacity)} there are"
    return Finding("memory", "problem", text, _advise_on_model(need))


def check_need(need: MemoryNeed, capacity: int) -> Finding:
    share = need.total / capacity
    text = f"{format_bytes(need.total)} of {format_bytes(capacity)} ({share:.0%}): {_describe(need)}"
    advice = _advise(need, capacity) if share > _TIGHT else None
    return Finding.judge("memory", text, advice, "problem" if share > 1.0 else "warning")


def _describe(need: MemoryNeed) -> str:
    parts = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations,
        "program and text": need.program,
    }
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)


def _advise(need: MemoryNeed, capacity: int) -> str:
    room = _TIGHT * capacity - need.fixed
    fitting = int(need.tokens_at_a_time * room / need.activations) if need.activations else 0
    if fitting < 1:
        return _advise_on_model(need)
    return (
        f"set training.micro_batch_tokens={fitting}, which leaves the result the same, or"
        " training.activation_checkpointing=true"
    )


def _advise_on_model(need: MemoryNeed) -> str:
    if need.program > need.fixed / 2:
        return (
            "most of it is text: run maskwright prepare and give its folder as data.train, which is not held in memory"
        )
    return "take a smaller model, an optimizer that keeps less (lion, sgd), or several GPUs with training.parallel=fsdp"
