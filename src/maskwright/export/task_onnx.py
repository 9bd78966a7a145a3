"""Export a fine-tuned model to ONNX, and report the cost and the agreement of each version.

B texts, C outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.export.measuring import (
    MEASURED_LENGTH,
    Cost,
    build_timed,
    describe_latency,
    measure_latency_ms,
    name_inputs,
    tabulate,
)
from maskwright.export.onnx import GRAPH_FILE, describe_versions, measure_versions, open_graphs
from maskwright.export.onnx_graph import Agreement, Answer, Inputs, answer_with_torch, check_packages, find_input_names
from maskwright.tasks.model import TaskModel
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer

_MOST_TEXTS = 256
_ROWS = 8
_CLOSE_MEASURES = 0.01
_CLOSE_COSINES = 0.99

Say = Callable[[str], None]
Decides = Literal["best class", "every class", "measure", "ends", "vector"]
"""How logits become a prediction."""


@dataclass(frozen=True)
class TaskFigures(Cost):
    """The measurements of one version of a model."""

    same_answers: float
    """The share of answers that are torch's: the best class of a text or token, every class of a multi-label model, the
    ends of a span, a measure to 0.01, and a vector by a cosine of 0.99."""
    mean_difference: float
    """Of logits, from torch's."""


@dataclass(frozen=True)
class _TaskExam:
    """Texts for all versions of a model, with torch's logits."""

    batches: list[Inputs]
    expected: list[NDArray[np.float32]]
    timed: dict[int, Inputs]
    length: int
    decides: Decides

    @property
    def num_texts(self) -> int:
        return sum(len(batch["input_ids"]) for batch in self.batches)

    def measure(self, answer: Answer, size_bytes: int) -> TaskFigures:
        latencies = {rows: measure_latency_ms(answer, inputs) for rows, inputs in self.timed.items()}
        same, differences = [], []
        for inputs, expected in zip(self.batches, self.expected, strict=True):
            found = answer(inputs)
            differences.append(_leave_padding(np.abs(found - expected), inputs).ravel())
            same.append(find_same(found, expected, inputs, self.decides).ravel())
        shares, gaps = np.concatenate(same), np.concatenate(differences)
        return TaskFigures(size_bytes, latencies, float(shares.mean()), float(gaps.mean()))


def export_task_onnx(
    model: TaskModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    int8: bool = False,
    fp16: bool = False,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Write `model.onnx` (and those in int8 and fp16), config.json and the tokenizer into `folder`, which may exist.

    The graph is compared with torch first; if it computes something else, nothing is written. The versions' predictions
    are compared on `texts`. Returns the reported figures.
    """
    check_packages()
    model = copy.deepcopy(model).cpu().float().eval()
    exam = _build_exam(model, tokenizer, texts, find_input_names(model.encoder))
    with open_graphs(model, tokenizer, folder, int8=int8, fp16=fp16) as (place, agreement):
        versions = measure_versions(model, place, exam)
    _report(versions, agreement, exam, say)
    return describe_versions(versions, agreement, exam.length, num_texts=exam.num_texts)


def _build_exam(model: TaskModel, tokenizer: Tokenizer, texts: Sequence[str], names: list[str]) -> _TaskExam:
    """Up to 256 texts, an even choice, with the first 128 tokens of each."""
    length = min(model.encoder.max_length, MEASURED_LENGTH)
    chosen = [text for text in texts[:: max(1, len(texts) // _MOST_TEXTS)][:_MOST_TEXTS] if text.strip()]
    if not chosen:
        raise InputError("there is no text to compare the exported model on; give files with text as --text")
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    rows = [[cls, *ids[: length - 2], sep] for ids in sorted(tokenizer.encode_batch(chosen), key=len)]
    batches = []
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        width = len(part[-1])
        ids = np.array([row + [pad] * (width - len(row)) for row in part])
        is_real = np.array([[1] * len(row) + [0] * (width - len(row)) for row in part])
        batches.append(name_inputs(ids, is_real, names))
    ask = answer_with_torch(model)
    timed = build_timed(rows, length, names)
    return _TaskExam(batches, [ask(batch) for batch in batches], timed, length, _find_decision(model.task))


def _leave_padding(logits: NDArray[np.float32], inputs: Inputs) -> NDArray[np.float32]:
    """(..., C) of texts, or of their real tokens."""
    return logits if logits.ndim == 2 else logits[inputs["attention_mask"] != 0]


def find_same(
    found: NDArray[np.float32], wanted: NDArray[np.float32], inputs: Inputs, decides: Decides
) -> NDArray[np.bool_]:
    """Where both logits give the same prediction; in regression, where they are close."""
    if decides == "ends":
        is_padding = inputs["attention_mask"][..., None] == 0
        found, wanted = (np.where(is_padding, -np.inf, one).argmax(axis=1) for one in (found, wanted))
        return np.asarray(found == wanted)
    found, wanted = (_leave_padding(one, inputs) for one in (found, wanted))
    match decides:
        case "measure":
            return np.abs(found - wanted) <= _CLOSE_MEASURES
        case "vector":
            lengths = (np.linalg.norm(one, axis=-1) for one in (found, wanted))
            return np.asarray((found * wanted).sum(-1) >= _CLOSE_COSINES * np.multiply(*lengths))
        case "every class":
            return (found > 0) == (wanted > 0)
        case "best class":
            return np.asarray(found.argmax(axis=-1) == wanted.argmax(axis=-1))


def _find_decision(task: Task) -> Decides:
    if isinstance(task, QuestionAnswering):
        return "ends"
    if isinstance(task, DenseRetrieval):
        return "vector"
    if isinstance(task, MultiLabel):
        return "every class"
    return "measure" if task.num_outputs == 1 else "best class"


def _report(versions: dict[str, TaskFigures], agreement: Agreement, exam: _TaskExam, say: Say) -> None:
    say(f"{GRAPH_FILE}: {agreement}")
    columns = {
        "same answers": lambda figures: f"{figures.same_answers:.1%}",
        "logits off by": lambda figures: f"{figures.mean_difference:.2g}",
    }
    for line in tabulate(versions, exam.length, columns):
        say(line)
    say(f"{describe_latency()}; answers are compared with torch's on {exam.num_texts:,} texts")
