"""Classification and regression that also learn the answers of a teacher, a model fine-tuned for the same task.

The loss weighs two parts: that of the labels, and that of the teacher's answers, of classes softened by a temperature
(Hinton et al. 2015). Held-out examples have labels alone. B rows, N documents of a row, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, find_asked
from maskwright.errors import InputError
from maskwright.objectives.distillation import compute_divergence
from maskwright.objectives.loss import LossSums
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.task import Task

_TEMPERATURE, _HARD_LABEL_WEIGHT = 2.0, 0.5
TEACHER_SETTINGS = ("teacher", "hard_label_weight")


class TaughtClassification(Classification):
    """Targets are class numbers, or (..., 1 + C) with the teacher's logits behind them."""

    def __init__(
        self,
        classes: Sequence[str],
        class_weights: Sequence[float] | None = None,
        label_smoothing: float = 0.0,
        *,
        temperature: float = _TEMPERATURE,
        hard_label_weight: float = _HARD_LABEL_WEIGHT,
    ) -> None:
        super().__init__(classes, class_weights, label_smoothing)
        self.temperature = temperature
        self.hard_label_weight = hard_label_weight

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        if not has_answers(targets):
            return super().loss_sums(logits, targets)
        is_asked = find_asked(targets)
        sums = super().loss_sums(logits, targets[..., 0].nan_to_num(IGNORED_LABEL).long())
        taught = targets[..., 1:].nan_to_num().float()
        divergences = compute_divergence(taught / self.temperature, logits.float() / self.temperature)
        soft_loss = torch.where(is_asked, divergences, 0.0).sum() * self.temperature**2
        return _weigh(sums, soft_loss, self.hard_label_weight)

    def describe_labels(self, targets: Tensor) -> str:
        return super().describe_labels(targets[:, 0].long() if has_answers(targets[None]) else targets)


class TaughtRegression(Regression):
    """Targets are numbers, or (..., 2) with the teacher's beside them."""

    def __init__(self, hard_label_weight: float = _HARD_LABEL_WEIGHT) -> None:
        super().__init__()
        self.hard_label_weight = hard_label_weight

    def loss_sums(self, logits: Tensor, targets: Tensor) -> LossSums:
        if not has_answers(targets):
            return super().loss_sums(logits, targets)
        sums, taught = (super(TaughtRegression, self).loss_sums(logits, targets[..., one]) for one in (0, 1))
        return _weigh(sums, taught.loss_sum, self.hard_label_weight)

    def prepare_head(self, output: nn.Linear, targets: Tensor) -> None:
        super().prepare_head(output, targets[:, 0])

    def describe_labels(self, targets: Tensor) -> str:
        return super().describe_labels(targets[:, 0])


def _weigh(sums: LossSums, soft_loss: Tensor, hard_label_weight: float) -> LossSums:
    loss = hard_label_weight * sums.loss_sum + (1.0 - hard_label_weight) * soft_loss
    return replace(sums, losses=loss[None])


def has_answers(targets: Tensor) -> bool:
    """Whether targets (B, N, ...) have a teacher's answers."""
    return targets.ndim > 2


def add_answers(targets: Tensor, answers: Tensor) -> Tensor:
    """(examples, 1 + C) targets (examples,) and a teacher's answers (examples, C)."""
    return torch.cat([targets[:, None].float(), answers.float()], dim=1)


def build_classification(examples: Sequence[Example], config: TaskConfig) -> Classification:
    """The task for these training examples, with a teacher if one is named."""
    task = Classification.from_examples(examples, config)
    if not _has_teacher(config):
        return task
    weights = None if task.class_weights is None else task.class_weights.tolist()
    temperature = config.temperature or _TEMPERATURE
    hard_label_weight = _choose_weight(config)
    return TaughtClassification(
        task.classes, weights, task.label_smoothing, temperature=temperature, hard_label_weight=hard_label_weight
    )


def build_regression(examples: Sequence[Example], config: TaskConfig) -> Regression:
    task = Regression.from_examples(examples, config)
    return TaughtRegression(_choose_weight(config)) if _has_teacher(config) else task


def _choose_weight(config: TaskConfig) -> float:
    return _HARD_LABEL_WEIGHT if config.hard_label_weight is None else config.hard_label_weight


def _has_teacher(config: TaskConfig) -> bool:
    for name in ("hard_label_weight", "temperature"):
        if config.teacher is None and getattr(config, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} is for a --teacher; give one, or leave it out")
    return config.teacher is not None


def find_order(task: Task, teacher: Task, name: str) -> list[int]:
    """The place of each output of a task among its teacher's; an `InputError` if they answer different questions."""
    if not isinstance(task, Classification):
        if type(teacher) is not Regression:
            raise InputError(f"the teacher {name} was not fine-tuned for regression; give one that was")
        return [0]
    if not isinstance(teacher, Classification):
        raise InputError(f"the teacher {name} was not fine-tuned for classification; give one that was")
    if set(teacher.classes) != set(task.classes):
        raise InputError(
            f"the teacher {name} knows the classes {', '.join(sorted(teacher.classes))}, the training examples have"
            f" {', '.join(sorted(task.classes))}; give a teacher of these"
        )
    return [teacher.classes.index(one) for one in task.classes]
