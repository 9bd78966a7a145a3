"""A few real optimizer steps of a run, on its device, in its precision: their time, memory and attention kernel.

At the end come the run's own first steps: its batches, masks and learning rates, compiled and captured as in the run.
"""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maskwright.batch import PackedBatch, concatenate
from maskwright.data.loader import PackedLoader
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import TrainingConfig
from maskwright.training.batches import group_batches
from maskwright.training.state import count_batches_per_step
from maskwright.training.step import StepResult, TrainStep
from maskwright.training.trainer import Trainer

_LONGEST_STEP_S = 5.0
"""Of batches whose step would take longer, only a part is measured."""
_FEW_ROWS = 4
_FEW_PLACES = 128
_COMPARED_PLACES = 8192
_NUM_RECORDED_FIRST = 3
"""Passes until a shape is compiled, captured as a CUDA graph and replayed once."""
_TIMING_S = 3.0
_MOST_TIMED = 30
_MUCH_FASTER = 0.75
_FIRST_STEPS = 8
_LEAST_FIRST_STEPS = 2
_FIRST_STEPS_S = 20.0


@dataclass(frozen=True)
class StepFigures:
    """Of a step on a whole batch."""

    seconds: float
    num_tokens: int
    """Padding not counted."""
    num_places: int
    working_bytes: int
    """Gradients, activations and temporaries at the fullest moment."""
    tokens_at_a_time: int
    attention: str
    loss: float
    """The loss of the untrained model."""
    is_finite: bool
    """Whether the losses and gradients of all steps were."""
    measured_share: float
    """The share of the batch that was measured; the rest is extrapolated."""
    num_first_steps: int = 0
    """The number of the run's own steps that were taken."""
    last_loss: float = math.nan
    """In the last of them."""
    off_plain: float = 0.0
    """The relative difference between gradients of compiled and of plain layers, as a share of their norm."""
    warnings: list[str] = field(default_factory=list)
    """Memory that ran out on the way."""


def measure_steps(trainer: Trainer, train: PackedLoader, mask_ratio: float) -> StepFigures:
    """Take steps on one batch that leave the weights as they are, then the first steps of the run."""
    warnings: list[str] = []
    device = trainer.engine.device
    batch = read_step(train, trainer.config).to(device)
    step = trainer.engine.begin(trainer.state, warnings.append)
    trainer.optimizers.set_learning_rate(0.0, trainer.engine.optimizer_config.learning_rate)

    def forward(rows: PackedBatch) -> None:
        trainer.engine.placed.loss_sums(trainer.model.ask(rows, 0, 0, mask_ratio, 0.0))

    def differentiate(num_rows: int) -> None:
        step.compute_gradients(batch.rows(0, num_rows), step=0, epoch=0, mask_ratio=mask_ratio)
        _wait_for(device)

    def time_rows(num_rows: int) -> float:
        if step.is_graphed:
            for _ in range(_NUM_RECORDED_FIRST):
                differentiate(num_rows)
        return _time_settled(lambda: differentiate(num_rows))

    def run(num_rows: int) -> StepResult:
        result = step(batch.rows(0, num_rows), step=0, epoch=0, mask_ratio=mask_ratio)
        _wait_for(device)
        return result

    short_row = batch.rows(0, 1).map_fields(lambda field: field[:, :_FEW_PLACES])
    attention = watch_attention(lambda: forward(short_row))  # uncompiled attention keeps the scores of all places
    run(1)  # gives the optimizer its state
    row_s = time_rows(1)
    num_rows = _choose_rows(batch.num_rows, row_s, time_rows)
    # The last step's gradients are dropped when the next begins; they would count twice.
    trainer.optimizers.zero_grad()
    results: list[StepResult] = []
    working = measure_peak(device, lambda: results.append(run(num_rows)))
    whole_s = _time_repeatedly(lambda: run(num_rows))
    part_s = _time(lambda: differentiate(num_rows)) if num_rows < batch.num_rows else whole_s
    num_more = _rows_at_a_time(step, None, batch) - _rows_at_a_time(step, num_rows, batch)
    if num_more:
        # The gradients of a large model hide in the backward pass what a few rows have kept for it.
        per_row = max(
            _measure_another_row(device, 2, lambda rows: forward(batch.rows(0, rows))),
            _measure_another_row(device, num_rows, differentiate),
        )
        working += num_more * per_row
    # Whether a GPU's kernels are right can depend on the number of rows.
    first_steps = take_first_steps(trainer, train, step, num_rows if device.type == "cpu" else None)
    num_compared = max(_FEW_ROWS, _COMPARED_PLACES // batch.input_ids.shape[1])
    return StepFigures(
        seconds=_extrapolate(row_s, part_s, whole_s, num_rows, batch.num_rows),
        num_tokens=batch.num_tokens(),
        num_places=batch.input_ids.numel(),
        working_bytes=working,
        tokens_at_a_time=_rows_at_a_time(step, None, batch) * batch.input_ids.shape[1],
        attention=attention,
        loss=trainer.model.compute_metrics(results[0].sums.tolist())["loss"],
        is_finite=all(map(_is_finite, [*results, *first_steps])),
        measured_share=num_rows / batch.num_rows,
        num_first_steps=len(first_steps),
        last_loss=trainer.model.compute_metrics(first_steps[-1].sums.tolist())["loss"],
        off_plain=compare_with_plain(trainer, step, batch.rows(0, min(num_compared, num_rows)), mask_ratio),
        warnings=warnings,
    )


def compare_with_plain(trainer: Trainer, step: TrainStep, rows: PackedBatch, mask_ratio: float) -> float:
    """The relative difference between gradients of compiled and of plain layers, as a share of their norm.

    A kernel that is wrong for a shape gives finite numbers as often as not. 0 where layers are not compiled, and where
    the two cannot be compared: dropout draws other numbers in compiled layers, and so do sampled replacements.
    """
    model, engine = trainer.model, trainer.engine
    if not isinstance(model, MaskedLanguageModel) or not engine.is_compiled:
        return 0.0
    if engine.precision.name == "fp8" or _draws(model):
        return 0.0

    def differentiate(by: TrainStep) -> list[Tensor]:
        by.compute_gradients(rows, step=0, epoch=0, mask_ratio=mask_ratio)
        return [param.grad.clone() for param in model.parameters() if param.grad is not None]

    found = differentiate(step)
    with model.uncompiled():
        expected = differentiate(replace(step, is_graphed=False))
    trainer.optimizers.zero_grad()
    errors = torch.stack([(ours - theirs).norm() for ours, theirs in zip(found, expected, strict=True)])
    return float(errors.norm() / torch.stack([grad.norm() for grad in expected]).norm())


def _draws(model: nn.Module) -> bool:
    """Whether the model has dropout or other randomness in training."""
    rates = [getattr(module, name, 0.0) for module in model.modules() for name in ("p", "rate", "dropout")]
    return any(isinstance(rate, float) and rate > 0.0 for rate in rates)


def take_first_steps(trainer: Trainer, train: PackedLoader, step: TrainStep, most_rows: int | None) -> list[StepResult]:
    """Take the run's first steps, on at most `most_rows` of each batch; stops at the first failure."""
    results: list[StepResult] = []
    begun = time.perf_counter()
    for epoch, batch in _read_first_steps(trainer, train):
        number = len(results)
        trainer.engine.set_learning_rate(number, 0.0)
        part = batch.rows(0, min(most_rows or batch.num_rows, batch.num_rows)).to(trainer.engine.device)
        results.append(step(part, step=number, epoch=epoch, mask_ratio=trainer.compute_mask_ratio(0.0)))
        is_late = time.perf_counter() - begun > _FIRST_STEPS_S
        if not _is_finite(results[-1]) or (is_late and len(results) >= _LEAST_FIRST_STEPS):
            break
    return results


def _read_first_steps(trainer: Trainer, train: PackedLoader) -> Iterator[tuple[int, PackedBatch]]:
    """Of as many epochs as it takes."""
    batches = (
        (epoch, concatenate(group))
        for epoch in count()
        for group, _ in group_batches(train.epoch(epoch), lambda: count_batches_per_step(trainer.config, 0.0))
    )
    return islice(batches, _FIRST_STEPS)


def read_step(train: PackedLoader, training: TrainingConfig) -> PackedBatch:
    """The batch of a step at the end of a run, where batches that grow have grown."""
    groups = group_batches(train.epoch(0), lambda: count_batches_per_step(training, 1.0))
    return concatenate(next(groups)[0])


def _is_finite(result: StepResult) -> bool:
    """Too large a loss scale at first is fp16's way to find the right one."""
    is_skipped = bool(result.skip) and not bool(result.is_scale_overflow)
    return bool(torch.isfinite(result.sums).all()) and not is_skipped


def _choose_rows(num_rows: int, row_s: float, time_rows: Callable[[int], float]) -> int:
    """The number of rows that fit into the longest step, estimated from a few."""
    few = min(num_rows, _FEW_ROWS if _FEW_ROWS * row_s <= _LONGEST_STEP_S else 2)
    if few == 1 or row_s > _LONGEST_STEP_S:
        return 1
    few_s = time_rows(few)
    per_row = max(few_s - row_s, 1e-9) / (few - 1)
    return max(few, min(num_rows, few + int((_LONGEST_STEP_S - few_s) / per_row)))


def _extrapolate(row_s: float, part_s: float, whole_s: float, measured_rows: int, num_rows: int) -> float:
    """`whole_s`, update included, for more rows; gradients of one and of a part of them tell what another takes."""
    per_row = row_s if measured_rows == 1 else max(0.0, part_s - row_s) / (measured_rows - 1)
    return whole_s + per_row * (num_rows - measured_rows)


def _measure_another_row(device: torch.device, num_rows: int, work: Callable[[int], object]) -> int:
    """The memory that one more takes in `work`, told by one and by several; 0 where there are not several."""
    if num_rows == 1:
        return 0
    several, one = measure_peak(device, lambda: work(num_rows)), measure_peak(device, lambda: work(1))
    return max(0, several - one) // (num_rows - 1)


def _rows_at_a_time(step: TrainStep, num_rows: int | None, batch: PackedBatch) -> int:
    limit = step.micro_batches.max_tokens
    num_rows = batch.num_rows if num_rows is None else num_rows
    return num_rows if limit is None else min(num_rows, max(1, limit // batch.input_ids.shape[1]))


def _time_repeatedly(work: Callable[[], object]) -> float:
    """The median of as many as a few seconds allow, at least one."""
    seconds = [_time_settled(work)]
    while sum(seconds) < _TIMING_S and len(seconds) < _MOST_TIMED:
        seconds.append(_time(work))
    return median(seconds)


def _time_settled(work: Callable[[], object]) -> float:
    """Again while that is much faster: the first times compile, and record what a GPU is to repeat."""
    before_s, seconds = math.inf, _time(work)
    while seconds < _MUCH_FASTER * before_s:
        before_s, seconds = seconds, _time(work)
    return seconds


def _time(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_PREFIX, _SUFFIX = "_scaled_dot_product_", "_attention"


def watch_attention(work: Callable[[], object]) -> str:
    """The kernels' names; SDPA is torch's function, which gets a mask of the documents and chooses among kernels.

    Compiled code runs uncompiled here, since it cannot be watched.
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
    """Counts the memory of tensors until they are freed, since the CPU allocator does not.

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
