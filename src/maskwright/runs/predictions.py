"""predictions.jsonl: the same held-out texts with the model's answers, as they change during a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from maskwright.batch import PackedBatch
from maskwright.inference.visualize import PredictionSample, PredictionView, build_prediction_view
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.folder import RunFolder
from maskwright.storage import append_text, open_regular, write_text
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import EVALUATION_RATIO
from maskwright.training.loop import Callback, Metrics

_MOST_READ_BYTES = 2**22


class PredictionLog(Callback):
    """A line at each evaluation: the texts of one small batch, whose masks are the same each time."""

    def __init__(self, run: RunFolder, batch: PackedBatch, tokenizer: Tokenizer) -> None:
        self.run = run
        self._batch = batch
        self._tokenizer = tokenizer
        self._unwritten: list[dict[str, Any]] = []

    def on_train_begin(self) -> None:
        """Drop the lines that a resumed run will write again."""
        step = self.trainer.state.step
        kept = [moment for moment in read_predictions(self.run) if step and moment["step"] <= step]
        if self.run.predictions_file.exists():
            write_text(self.run.predictions_file, "".join(json.dumps(moment) + "\n" for moment in kept))

    def on_evaluation(self, metrics: Metrics) -> None:
        with self.trainer.averaged_weights():
            view = self._build_view()
        self._unwritten.append({"step": self.trainer.state.step, "samples": [asdict(one) for one in view.samples]})
        self.trainer.late_writes.write(self.run.predictions_file, self._write, len(self._format()))

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self.on_evaluation(metrics)

    def _build_view(self) -> PredictionView:
        model, num_samples = self.trainer.model, len(self._batch.input_ids)
        assert isinstance(model, MaskedLanguageModel)
        return build_prediction_view(model, self._batch, self._tokenizer, num_samples, mask_ratio=EVALUATION_RATIO)

    def _write(self) -> None:
        append_text(self.run.predictions_file, self._format())
        self._unwritten = []

    def _format(self) -> str:
        return "".join(json.dumps(moment) + "\n" for moment in self._unwritten)


def read_predictions(run: RunFolder) -> list[dict[str, Any]]:
    """The newest moments, oldest first: `step` and `samples`, each as a `PredictionSample`; damaged ones are left out.

    A run that went back to an earlier step tells of it anew, and what it said of later steps no longer stands.
    """
    try:
        with open_regular(run.predictions_file) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST_READ_BYTES))
            lines = file.read(_MOST_READ_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    moments: list[dict[str, Any]] = []
    for line in lines:
        moment = _parse(line)
        if moment is not None:
            moments = [earlier for earlier in moments if earlier["step"] < moment["step"]]
            moments.append(moment)
    return moments


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return asdict(TypeAdapter(_Moment).validate_json(line))
    except ValidationError:
        return None


@dataclass(frozen=True)
class _Moment:
    step: int
    samples: list[PredictionSample]
