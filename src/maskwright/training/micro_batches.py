"""Micro-batches: how much of a batch is processed at a time, less if memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from maskwright.batch import PackedBatch
from maskwright.errors import RunError, describe_briefly, is_out_of_memory

Result = TypeVar("Result")


class MicroBatches:
    """Cuts batches into parts of at most `max_tokens` tokens, padding included; None is the whole batch.

    If memory runs out, the parts are halved and the batch is processed again, so results do not change. With several
    processes that is an error instead, which says what to set.
    """

    def __init__(
        self, max_tokens: int | None, is_alone: bool, warn: Callable[[str], None], *, is_training: bool = True
    ) -> None:
        self.max_tokens = max_tokens
        self._is_alone = is_alone
        self._warn = warn
        self._is_training = is_training

    def run(self, batch: PackedBatch, work: Callable[[list[PackedBatch]], Result]) -> Result:
        while True:
            try:
                return work(batch.cut(self._rows_at_a_time(batch)))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = describe_briefly(error)
            # Outside the handler, whose traceback would keep the failed attempt's memory.
            self._shrink(batch, problem)

    def _rows_at_a_time(self, batch: PackedBatch) -> int:
        num_rows, length = batch.input_ids.shape
        return num_rows if self.max_tokens is None else min(num_rows, max(1, self.max_tokens // length))

    def _shrink(self, batch: PackedBatch, problem: str) -> None:
        length, rows = batch.input_ids.shape[1], self._rows_at_a_time(batch)
        smaller = max(1, rows // 2) * length
        if not self._is_alone:
            raise RunError(
                f"out of memory with {rows * length} tokens at a time in each process{self._place} ({problem}); resume"
                f" with training.micro_batch_tokens={smaller}, which leaves the result the same"
            )
        if rows == 1:
            first = "training.activation_checkpointing=true, " if self._is_training else ""
            raise RunError(
                f"out of memory with a single row of {length} tokens{self._place} ({problem}); use {first}a smaller"
                " model or a shorter data.max_length"
            )
        release_memory()
        self.max_tokens = smaller
        kept = (
            f"the batch stays the same (training.micro_batch_tokens={smaller} avoids the attempt)"
            if self._is_training
            else "the figures stay the same"
        )
        self._warn(f"out of memory with {rows * length} tokens at a time{self._place}; going on with {smaller}, {kept}")

    @property
    def _place(self) -> str:
        return "" if self._is_training else " in an evaluation"


def release_memory() -> None:
    """Free the GPU memory that the failed attempt reserved."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
