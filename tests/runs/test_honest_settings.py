"""Settings that would be read wrongly are refused before anything is written, and figures say what they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.folder import RunFolder
from maskwright.runs.model import load_model
from maskwright.runs.pretrain import pretrain
from maskwright.training.checkpoint_writer import CheckpointWriter


def run(values: dict[str, Any], **sections: Any) -> Any:
    values = copy.deepcopy(values)
    for name, settings in sections.items():
        values[name] = {**values.get(name, {}), **settings} if isinstance(settings, dict) else settings
    values["training"]["precision"] = "fp32"
    return pretrain(build_config(values), console=Console(quiet=True))


def test_batches_that_grow_are_whole_rows() -> None:
    with pytest.raises(InputError, match=r"batch_tokens_start is 32, not a multiple of data\.max_length 64"):
        build_config({"data": {"max_length": 64}, "training": {"batch_tokens": 512, "batch_tokens_start": 32}})


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"initial_epoch": 500}, "epochs must be the larger"),
        ({"keep_optimizer": True}, "needs model.from to be a run or a checkpoint"),
        ({"mode": "rtd"}, "training.mode is rtd and objective has phases"),
    ],
)
def test_what_training_would_refuse_is_refused_before_the_folder_is_made(
    tiny_values: dict[str, Any], tmp_path: Path, training: dict[str, Any], words: str
) -> None:
    phases = [{"mode": "mlm"}] if "mode" in training else []
    with pytest.raises(InputError, match=words):
        run(tiny_values, training=training, objective=phases)
    assert not (tmp_path / "runs").exists()


def test_a_plan_that_ends_causal_is_measured_and_kept_as_such(tiny_values: dict[str, Any]) -> None:
    finished = run(tiny_values, objective=[{"mode": "mlm", "until": 0.5}, {"mode": "clm"}])
    assert finished.figures["asked"] == "next"
    model, _ = load_model(str(finished.folder.path))
    assert model.evaluates_causally


def test_a_run_begun_before_a_section_existed_is_still_a_run(trained_run: Path, tmp_path: Path) -> None:
    values = yaml.safe_load((trained_run / "config.yaml").read_text())
    for section in ("objective", "pairs", "replaced_tokens"):
        del values[section]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    assert RunFolder(tmp_path).is_run
    (tmp_path / "config.yaml").write_text("training: {epochs: 3}\n")
    assert not RunFolder(tmp_path).is_run


def test_replaced_token_settings_act_on_a_model_that_goes_on(tiny_values: dict[str, Any]) -> None:
    first = run(tiny_values, training={"mode": "rtd"})
    going_on = {"model": {"from": str(first.folder.path)}, "run": {**tiny_values["run"], "name": "more"}}
    values = {**tiny_values, **going_on}
    second = run(values, training={"mode": "rtd"}, replaced_tokens={"discriminator_weight": 3.0, "temperature": 2.0})
    assert second.trainer.model.part_weights == (1.0, 3.0)
    assert second.trainer.model.temperature == 2.0
    with pytest.raises(InputError, match=r"generator of size 0\.25"):
        run(
            {**values, "run": {**values["run"], "name": "other"}},
            training={"mode": "rtd"},
            replaced_tokens={"generator_size": 0.5},
        )
    with pytest.raises(InputError, match="finds replaced tokens and predicts none"):
        load_model(str(first.folder.path))


def test_old_checkpoints_that_cannot_be_removed_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise PermissionError(13, "nope")

    monkeypatch.setattr("maskwright.training.checkpoint_writer.write_checkpoint", fail)
    warnings: list[str] = []
    writer = CheckpointWriter(warnings.append)
    writer.write(Path("x"), None, background=True)  # type: ignore[arg-type]
    writer.finish()
    assert len(warnings) == 1
    assert "nope" in warnings[0]


def test_rows_longer_than_the_model_are_refused_in_evaluation(
    trained_run: Path, corpus_file: Path, command: Any
) -> None:
    command("eval", trained_run, "mlm", corpus_file, "--max-length", 5000).assert_refused("lower --max-length")
