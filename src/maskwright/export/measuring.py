"""Measure a version of a model: size, latency and held-out loss; and the table of several versions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.export.onnx_graph import Answer, Inputs
from maskwright.masking.tokens import CorruptedBatch
from maskwright.objectives.loss import compute_loss_sums
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.prediction import shift_left
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import EVALUATION_RATIO, EVALUATION_SEED

MEASURED_LENGTH = 128
LATENCY_BATCHES = (1, 8)
_MOST_TEXTS = 256
_ROWS = 8
_WARM_UPS = 2
_FEWEST_REPEATS, _MOST_REPEATS = 5, 50
_PATIENCE_S = 2.0


@dataclass(frozen=True)
class Question:
    inputs: Inputs
    labels: Tensor
    """(batch, length) ids to predict, -100 elsewhere."""


@dataclass(frozen=True)
class Cost:
    """What one version of a model takes."""

    size_bytes: int
    latency_ms: dict[int, float]
    """By the number of texts in a batch."""


CostT = TypeVar("CostT", bound=Cost)


@dataclass(frozen=True)
class Figures(Cost):
    """The measurements of one version of a language model."""

    loss: float


@dataclass(frozen=True)
class Exam:
    """The batches that every version of a model is evaluated and timed on."""

    questions: list[Question]
    timed: dict[int, Inputs]
    length: int
    """Tokens per row of the timed batches."""

    @property
    def num_asked(self) -> int:
        return sum(int((question.labels >= 0).sum()) for question in self.questions)

    def measure(self, answer: Answer, size_bytes: int) -> Figures:
        latencies = {rows: measure_latency_ms(answer, inputs) for rows, inputs in self.timed.items()}
        return Figures(size_bytes, latencies, _compute_loss(answer, self.questions))


def build_exam(
    model: MaskedLanguageModel, tokenizer: Tokenizer, texts: Sequence[str], names: list[str], max_length: int
) -> Exam:
    """The first 128 tokens of up to 256 evenly chosen texts, with the masks of every evaluation."""
    chosen = texts[:: max(1, len(texts) // _MOST_TEXTS)][:_MOST_TEXTS]
    encoded = [ids for ids in tokenizer.encode_batch(chosen) if ids]
    length = min(max_length, MEASURED_LENGTH)
    rows = [[tokenizer.cls_token_id, *ids[: length - 2], tokenizer.sep_token_id] for ids in sorted(encoded, key=len)]
    questions = [
        _ask(model, rows[start : start + _ROWS], names, tokenizer.pad_token_id) for start in range(0, len(rows), _ROWS)
    ]
    exam = Exam(questions, build_timed(rows or [[tokenizer.pad_token_id]], length, names), length)
    if not exam.num_asked:
        raise InputError("the held-out text is too small: none of its tokens is asked for; give more texts")
    return exam


def _ask(model: MaskedLanguageModel, rows: list[list[int]], names: list[str], pad_token_id: int) -> Question:
    width = max(map(len, rows))
    input_ids = torch.tensor([row + [pad_token_id] * (width - len(row)) for row in rows])
    attention_mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    corrupted = _corrupt(model, from_padded(input_ids, attention_mask))
    return Question(
        name_inputs(corrupted.batch.input_ids.numpy(), attention_mask.numpy(), names),
        corrupted.labels,
    )


def _corrupt(model: MaskedLanguageModel, batch: PackedBatch) -> CorruptedBatch:
    """Labels are next tokens only for models with causal `forward`; hybrid models may see both sides there."""
    if model.find_causal(batch) is not None:
        return model.corrupt_for_evaluation(batch, EVALUATION_SEED, EVALUATION_RATIO)
    masked = model.token_masker.corrupt(batch, EVALUATION_RATIO, EVALUATION_SEED, 0)
    labels = shift_left(masked.labels, batch) if model.predicts_next else masked.labels
    return CorruptedBatch(masked.batch, labels, masked.num_slots)


def name_inputs(input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64] | None, names: list[str]) -> Inputs:
    values = {
        "input_ids": input_ids,
        "attention_mask": np.ones_like(input_ids) if attention_mask is None else attention_mask,
        "token_type_ids": np.zeros_like(input_ids),
    }
    return {name: values[name] for name in names}


def build_timed(rows: Sequence[Sequence[int]], length: int, names: list[str]) -> dict[int, Inputs]:
    """Batches of full rows of the tokens of `rows`, by the number of texts."""
    timed_row = np.resize([token_id for row in rows for token_id in row], length)
    return {count: name_inputs(np.tile(timed_row, (count, 1)), None, names) for count in LATENCY_BATCHES}


def tabulate(
    versions: Mapping[str, CostT], length: int, columns: Mapping[str, Callable[[CostT], Any]]
) -> Iterator[str]:
    """A line of heads and one for each version: size, latencies at `length`, and columns of what was measured."""
    timed = "".join(f"{f'{count} x {length} tokens':>16}" for count in LATENCY_BATCHES)
    yield f"{'':<10}{'size':>12}{timed}{''.join(f'{head:>16}' for head in columns)}"
    for name, figures in versions.items():
        latencies = "".join(f"{figures.latency_ms[count]:>13.1f} ms" for count in LATENCY_BATCHES)
        shown = "".join(f"{show(figures):>16}" for show in columns.values())
        yield f"{name:<10}{figures.size_bytes / 1e6:>9.1f} MB{latencies}{shown}"


def describe_latency() -> str:
    threads = torch.get_num_threads()
    return f"latency is the median on {threads} CPU thread{'s' if threads > 1 else ''}"


def _compute_loss(answer: Answer, questions: list[Question]) -> float:
    """Mean cross-entropy in nats over all labels."""
    loss_sum, num_asked = 0.0, 0
    for question in questions:
        is_asked = question.labels >= 0
        logits = torch.from_numpy(answer(question.inputs)[is_asked.numpy()])
        sums = compute_loss_sums(logits, question.labels[is_asked])
        loss_sum += float(sums.loss_sum)
        num_asked += int(sums.num_labelled)
    return loss_sum / num_asked


def measure_latency_ms(answer: Answer, inputs: Inputs) -> float:
    """The median of some repeats: two seconds of them, but at least 5 and at most 50."""
    for _ in range(_WARM_UPS):
        answer(inputs)
    seconds: list[float] = []
    while len(seconds) < _FEWEST_REPEATS or (sum(seconds) < _PATIENCE_S and len(seconds) < _MOST_REPEATS):
        begun = time.perf_counter()
        answer(inputs)
        seconds.append(time.perf_counter() - begun)
    return median(seconds) * 1000
