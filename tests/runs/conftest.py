"""Parts of a run, built as for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maskwright.config import Config, build_config
from maskwright.runs.inputs import TrainingData, load_data
from maskwright.runs.model import build_model
from maskwright.runs.pretrain import build_trainer
from maskwright.training.trainer import Trainer


@pytest.fixture(autouse=True)
def _nobody_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run at its end does not wait for room on a full disk."""
    monkeypatch.setattr("maskwright.runs.interruption._WAIT_FOR_ROOM_S", 0.0)


@pytest.fixture
def build_run(
    tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Config, TrainingData, Trainer]]:
    """Sections of settings on top of the tiny ones to their configuration, data and trainer; steps are timed twice."""
    monkeypatch.setattr("maskwright.runs.doctor.step._MOST_TIMED", 2)

    def build(**sections: dict[str, Any]) -> tuple[Config, TrainingData, Trainer]:
        for section, values in sections.items():
            tiny_values.setdefault(section, {}).update(values)
        tiny_values["training"]["precision"] = "fp32"
        config = build_config(tiny_values)
        data = load_data(config, None, pytest.fail)
        return config, data, build_trainer(config, build_model(config, data.tokenizer))

    return build
