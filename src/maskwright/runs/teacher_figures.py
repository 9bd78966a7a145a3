"""What a run that distils has made: size, speed and held-out figures of the teacher, and of the student before."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from maskwright.batch import PackedBatch
from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.models.any_encoder import encode
from maskwright.models.files.model_folder import resolve_folder
from maskwright.objectives.distillation import Student
from maskwright.objectives.mlm_files import lacks_head
from maskwright.objectives.objective import Objective
from maskwright.runs.model import build_model
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.compute.parallel import Alone
from maskwright.training.held_out import Evaluation, evaluate
from maskwright.training.trainer import Trainer

_TIMED_TOKENS = {"cpu": 2_048}
_MANY_TOKENS = 32_768
_NUM_TIMES = 5


def measure_teacher(
    config: Config, student: Student, trainer: Trainer, tokenizer: Tokenizer, validation: PackedLoader
) -> dict[str, Any]:
    """For final.json; all processes call this. The student before is built anew, as the run's seed and teacher tell."""
    device = trainer.engine.device
    before = build_model(config, tokenizer).to(device)
    figures: dict[str, Any] = _describe(_measure(trainer, before, validation), "{}_before")
    teacher = student.teacher
    if not lacks_head(resolve_folder(str(config.distillation.teacher))):
        teacher.masker = student.masker  # asked for the same tokens
        figures |= _describe(_measure(trainer, teacher, validation), "teacher_{}")
    num_tokens = _TIMED_TOKENS.get(device.type, _MANY_TOKENS)
    batch = validation.first_rows(max(1, num_tokens // validation.row_length)).to(device)
    speeds = _time(trainer, [teacher.encoder, student.encoder], batch)
    return figures | {
        "teacher_parameters": sum(param.numel() for param in teacher.parameters()),
        "teacher_encoder_tokens_per_s": speeds[0],
        "encoder_tokens_per_s": speeds[1],
    }


def _measure(trainer: Trainer, model: Objective, validation: PackedLoader) -> Evaluation:
    placed = Alone(model, trainer.engine.precision)
    return evaluate(
        model,
        validation.epoch(0),
        placed=placed,
        world=trainer.world,
        micro_batches=trainer.evaluation_batches,
    )


def _describe(evaluation: Evaluation, name: str) -> dict[str, float]:
    return {name.format("loss"): evaluation.token_loss, name.format("accuracy"): evaluation.accuracy}


@torch.inference_mode()
def _time(trainer: Trainer, encoders: list[nn.Module], batch: PackedBatch) -> list[float]:
    """Tokens per second of each encoder, by turns, at its best."""
    device = trainer.engine.device
    best = [float("inf")] * len(encoders)
    for turn in range(_NUM_TIMES + 1):
        for index, encoder in enumerate(encoders):
            with evaluation_mode(encoder), trainer.engine.precision.autocast(device):
                begun = _now(device)
                encode(encoder, batch)
                seconds = _now(device) - begun
            best[index] = min(best[index], seconds) if turn else best[index]  # the first warms up
    return [batch.num_tokens() / seconds for seconds in best]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
