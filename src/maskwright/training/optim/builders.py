"""Optimizers and learning-rate schedules from plain dictionaries, for those who write no configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import Field
from torch import nn

from maskwright.errors import InputError
from maskwright.sections.base import Section
from maskwright.sections.training import OptimizerConfig, ScheduleConfig
from maskwright.suggestions import suggest
from maskwright.training.optim.optimizers import OptimizerSet, build_optimizers
from maskwright.training.optim.schedules import compute_learning_rate

AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True)
class LearningRateSchedule:
    """A learning-rate schedule with its peak; called with a step, numbered from 0, it returns the rate."""

    learning_rate: float
    config: ScheduleConfig

    def __call__(self, step: int) -> float:
        """The rate at a step; an InputError if the schedule depends on the length of the run."""
        config = self.config
        ends_with_run = config.type != "constant" or (config.warmup_steps is None and config.warmup_share > 0)
        if config.decay_steps is None and ends_with_run:
            raise InputError(
                f"the schedule '{config.type}' has no decay_steps, so its rate depends on the length of the run;"
                " set decay_steps to the step at which it should end"
            )
        return compute_learning_rate(config, self.learning_rate, step, progress=0.0)


@dataclass(frozen=True)
class BuiltOptimizer:
    """Settings of an optimizer and its schedule, without a model."""

    config: OptimizerConfig
    schedule: ScheduleConfig

    def build(self, model: nn.Module) -> OptimizerSet:
        """The optimizer over a model's parameters, at its peak learning rate."""
        return build_optimizers(model, self.config)


class _ScheduleSettings(ScheduleConfig):
    learning_rate: float = Field(gt=0, description="Peak learning rate.")


def learning_rate_schedule_builder(settings: Mapping[str, Any]) -> LearningRateSchedule:
    """A schedule from `type`, `learning_rate` and the settings of the configuration's `schedule` section.

    A constant rate has no warm-up unless `warmup_steps` or `warmup_share` asks for one.
    """
    values = _copy(settings, "learning-rate schedule")
    if "learning_rate" not in values:
        raise InputError("the schedule has no learning_rate; give its peak, such as 'learning_rate': 5e-5")
    if values.get("type") == "constant" and "warmup_share" not in values:
        values.setdefault("warmup_steps", 0)
    checked = _check(values, _ScheduleSettings, "learning-rate schedule")
    config = ScheduleConfig(**checked.model_dump(exclude={"learning_rate"}, exclude_unset=True))
    return LearningRateSchedule(checked.learning_rate, config)


def optimizer_builder(
    settings: Mapping[str, Any], learning_rate_schedule: LearningRateSchedule | float
) -> BuiltOptimizer:
    """An optimizer from the settings of the configuration's `optimizer` section; a number as the schedule is a constant
    rate.

    The peak learning rate is the schedule's; for muon it is that of AdamW's share, and `muon_learning_rate` follows
    the same schedule.
    """
    values = _copy(settings, "optimizer")
    if "learning_rate" in values:
        raise InputError("the optimizer has a learning_rate of its own; give it to the schedule and remove it here")
    if isinstance(learning_rate_schedule, int | float):
        learning_rate_schedule = learning_rate_schedule_builder(
            {"type": "constant", "learning_rate": learning_rate_schedule}
        )
    if not isinstance(learning_rate_schedule, LearningRateSchedule):
        raise InputError(
            f"the learning-rate schedule is a {type(learning_rate_schedule).__name__}; give a number or what"
            " learning_rate_schedule_builder returns"
        )
    values["learning_rate"] = learning_rate_schedule.learning_rate
    return BuiltOptimizer(_check(values, OptimizerConfig, "optimizer"), learning_rate_schedule.config)


def _copy(settings: Mapping[str, Any], subject: str) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise InputError(
            f"the {subject} is described by a {type(settings).__name__}; give a dictionary with its 'type' and settings"
        )
    return dict(settings)


def _check(values: dict[str, Any], section: type[AnySection], subject: str) -> AnySection:
    known = get_args(section.model_fields["type"].annotation)
    if "type" in values and values["type"] not in known:
        raise InputError(f"unknown {subject} type '{values['type']}'{suggest(str(values['type']), known)}")
    return section.read(values)
