"""Measure forgetting: a model's loss on general text before, during and after a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.errors import InputError
from maskwright.runs.folder import RunFolder
from maskwright.runs.inputs import pack_documents
from maskwright.runs.texts import Say, read_texts, sort_by_hash
from maskwright.sections.data import build_sources
from maskwright.storage import read_json, read_record, write_text
from maskwright.suggestions import OVERWRITE
from maskwright.text.quality import list_texts
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.callbacks import write_weights
from maskwright.training.distributed.world import World
from maskwright.training.held_out import Evaluation, evaluate
from maskwright.training.loop import Callback, Metrics

MEASURED_SHARE = 0.5
"""The share of general texts, by lowest hashes, that is used for evaluation; the others may be trained on."""
_WITHIN_FOLDER = "within"
_ROWS_PER_BATCH = 16


@dataclass
class Record:
    """The measurements, kept in the run folder so that a resumed run compares with the same initial loss."""

    before: dict[str, float]
    general: list[tuple[int, float]] = field(default_factory=list)
    """The loss on general text by step."""
    stopped_at: int | None = None


def load_general_text(config: Config, tokenizer: Tokenizer, warn: Say) -> PackedLoader | None:
    """Rows of general text, the same whatever the order of its documents; None if forgetting is not measured."""
    if config.forgetting.general is None:
        return None
    if config.training.mode == "rtd":
        raise InputError("forgetting.general asks for masked tokens, which training.mode=rtd does not predict")
    sources = build_sources(config.forgetting.general)
    texts = sort_by_hash([text for source in sources for text in list_texts(read_texts(source, warn))])
    chosen, num_tokens = [], 0
    for text in texts[: math.ceil(len(texts) * MEASURED_SHARE)]:
        if num_tokens >= config.forgetting.max_tokens:
            break
        chosen.append(text)
        num_tokens += len(tokenizer.encode_batch([text])[0])
    if not chosen:
        raise InputError(f"forgetting.general={config.forgetting.general} holds no text; give some")
    return pack_documents(
        chosen, tokenizer, row_length=config.data.max_length, rows_per_batch=_ROWS_PER_BATCH, shuffle=False
    )


class ForgettingGuard(Callback):
    """Stops the run when the loss on general text has grown too much, and restores the last weights below the limit."""

    on_every_rank = True

    def __init__(
        self, run: RunFolder, general: PackedLoader, validation: PackedLoader, max_increase: float, world: World
    ) -> None:
        self.general = general.for_rank(world.rank, world.size)
        self.validation = validation
        self.max_increase = max_increase
        self._record_file = run.forgetting_file
        self._within_folder = run.checkpoints / _WITHIN_FOLDER
        self._record = Record({})

    def on_train_begin(self) -> None:
        step = self.trainer.state.step
        if step and self._record_file.is_file():
            self._record = _read_record(self._record_file, step)
        else:
            domain, general = self._measure(self.validation), self._measure(self.general)
            self._record = Record(_describe(domain, "") | _describe(general, "general_"))
            self._keep_weights()
            self._write_record()
        self.trainer.stop_training |= self._record.stopped_at is not None

    def on_evaluation(self, metrics: Metrics) -> None:
        self._check()

    def on_epoch_end(self, epoch: int, metrics: Metrics) -> None:
        self._check()

    def on_train_end(self) -> None:
        if self._record.stopped_at is not None:
            self.trainer.finish_writing()
            self.trainer.late_writes.check(self._within_folder)
            self.trainer.model.load_weights(self._within_folder)

    def compute_figures(self) -> dict[str, float]:
        """For final.json: both texts before, the general one after."""
        after = _describe(self._measure(self.general), "general_")
        before = {f"{name}_before": value for name, value in self._record.before.items()}
        forgetting = after["general_loss"] - self._record.before["general_loss"]
        stopped = {} if self._record.stopped_at is None else {"stopped_for_forgetting_at": self._record.stopped_at}
        return {**before, **after, "forgetting": forgetting, "max_forgetting": self.max_increase, **stopped}

    def _check(self) -> None:
        if self._record.stopped_at is not None:
            return
        loss, step = self._measure(self.general).token_loss, self.trainer.state.step
        self._record.general.append((step, loss))
        increase = loss - self._record.before["general_loss"]
        if increase > self.max_increase:
            self._record.stopped_at = step
            self.trainer.stop_training = True
            self.trainer.warn(
                f"at step {step} the loss on general text has grown by {increase:.3f} nats, more than"
                f" {self.max_increase:g} (forgetting.max_increase): the run ends with the last weights within"
            )
        else:
            self._keep_weights()
        self._write_record()

    def _measure(self, loader: PackedLoader) -> Evaluation:
        trainer = self.trainer
        with trainer.averaged_weights():
            return evaluate(
                trainer.model,
                loader.epoch(0),
                placed=trainer.engine.placed,
                world=trainer.world,
                micro_batches=trainer.evaluation_batches,
            )

    def _keep_weights(self) -> None:
        with self.trainer.averaged_weights():
            if self.trainer.world.is_main:
                write_weights(self.trainer, self._within_folder)

    def _write_record(self) -> None:
        if self.trainer.world.is_main:
            text = json.dumps(asdict(self._record), indent=2) + "\n"
            write = partial(write_text, self._record_file, text)
            self.trainer.late_writes.write(self._record_file, write, len(text))


def _describe(evaluation: Evaluation, prefix: str) -> dict[str, float]:
    return {f"{prefix}loss": evaluation.token_loss, f"{prefix}accuracy": evaluation.accuracy}


def _read_record(file: Path, step: int) -> Record:
    """As it stood at the step that is resumed from: what came later is done again."""
    values = read_json(file)
    if not isinstance(values.get("before"), dict) or "general_loss" not in values["before"]:
        raise InputError(
            f"{file} does not say what was measured before the run; restore it, or add {OVERWRITE} to begin anew"
        )
    stored = read_record(Record, values, file)
    stored.general = [(at, loss) for at, loss in stored.general if at <= step]
    if stored.stopped_at is not None and stored.stopped_at > step:
        stored.stopped_at = None
    return stored
