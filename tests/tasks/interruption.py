"""A run that dies between checkpoints and is repeated, beside one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.runs.callbacks import PeriodicCheckpoints
from maskwright.tasks.model import TaskModel

_OFTEN = "training.checkpoint_every_steps=3"


class _KilledError(Exception):
    """Where a machine would have failed."""


def assert_resumes_exactly(
    run: Callable[[Path, str], Any], folder: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """`run` trains into a folder with a setting more; weights and figures must be those of a run without a break."""
    run(folder / "whole", _OFTEN)
    save = PeriodicCheckpoints.on_step_end

    def dying(self: PeriodicCheckpoints, step: int) -> None:
        save(self, step)
        if step == dies_at:
            raise _KilledError

    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", dying)
    with pytest.raises(_KilledError):
        run(folder / "cut", _OFTEN)
    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", save)
    run(folder / "cut", _OFTEN)
    weights = [TaskModel.from_pretrained(folder / name / "model").state_dict() for name in ("whole", "cut")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    finals = [json.loads((folder / name / "final.json").read_text(encoding="utf-8")) for name in ("whole", "cut")]
    assert {**finals[0], "seconds": 0} == {**finals[1], "seconds": 0}
