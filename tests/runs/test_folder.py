from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maskwright.config import Config, build_config
from maskwright.errors import InputError
from maskwright.runs.folder import RunFolder, find_run
from maskwright.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return build_config({"run": {"out": str(tmp_path / "deep" / "runs"), "name": "mine"}})


def test_finding_a_run_writes_nothing(config: Config, tmp_path: Path) -> None:
    run = find_run(config)
    assert run.path == tmp_path / "deep" / "runs" / "mine"
    assert list(tmp_path.iterdir()) == []


def test_a_begun_run_is_a_run_and_can_be_found_again(config: Config, tokenizer: Tokenizer) -> None:
    run = find_run(config)
    assert not run.is_run
    run.begin(config, tokenizer, "data", overwrite=False)
    assert run.is_run
    assert not run.is_finished
    assert find_run(config) == run
    assert (run.tokenizer / "tokenizer.json").is_file()


def test_beginning_again_keeps_the_tokenizer_of_the_run(
    config: Config, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    from maskwright.text.tokenizer.tokenizer import load_tokenizer
    from maskwright.text.tokenizer.train import train_tokenizer

    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)
    other = train_tokenizer(sentences, vocab_size=90)
    run.begin(config, other, "data", overwrite=False)
    assert load_tokenizer(run.tokenizer).vocab_size == tokenizer.vocab_size
    run.begin(config, other, "data", overwrite=True)
    assert load_tokenizer(run.tokenizer).vocab_size == other.vocab_size


def test_a_run_of_an_older_version_takes_the_defaults_of_newer_settings(config: Config, tokenizer: Tokenizer) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)
    lines = run.config_file.read_text().splitlines(keepends=True)
    run.config_file.write_text("".join(line for line in lines if "initial_epoch" not in line))
    assert find_run(config) == run
    config.training.initial_epoch = 7
    with pytest.raises(InputError, match=r"training\.initial_epoch=0, this command has .*=7"):
        find_run(config)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("activation_checkpointing", True),
        ("checkpoint_every_steps", 7),
        ("compile", True),
        ("dead_process_seconds", 7.0),
        ("device", "cpu"),
        ("evaluate_every_steps", 7),
        ("evaluate_max_batches", 7),
        ("final_evaluation", False),
        ("keep_best", True),
        ("keep_checkpoints", 7),
        ("keep_every_steps", 7),
        ("log_every_steps", 7),
        ("log_to", ["tensorboard"]),
        ("max_bad_steps", 7),
        ("micro_batch_tokens", 64),
        ("parallel", "fsdp"),
        ("precision", "fp32"),
        ("tensorboard", True),
    ],
)
def test_settings_that_change_no_result_do_not_hold_a_run_up(
    config: Config, tokenizer: Tokenizer, setting: str, value: Any
) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)
    setattr(config.training, setting, value)
    assert find_run(config) == run


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"training": {"rollback_deviations": 6.0}}, "log_every_steps"),
        ({"training": {"rollback_deviations": 6.0}}, "checkpoint_every_steps"),
        ({"forgetting": {"general": "general.txt"}}, "evaluate_every_steps"),
        ({"training": {"keep_best": True}}, "evaluate_max_batches"),
        ({"training": {"precision": "fp8"}}, "compile"),
        ({}, "max_steps"),
        ({}, "rollback_deviations"),
    ],
)
def test_settings_that_decide_about_the_weights_do(
    tmp_path: Path, tokenizer: Tokenizer, changes: dict[str, Any], setting: str
) -> None:
    config = build_config({"run": {"out": str(tmp_path), "name": "mine"}, **changes})
    find_run(config).begin(config, tokenizer, "data", overwrite=False)
    setattr(config.training, setting, True if setting == "compile" else 7)
    with pytest.raises(InputError, match=rf"is an unfinished run with training\.{setting}="):
        find_run(config)


def test_a_run_goes_on_where_its_folder_was_moved_to(config: Config, tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)
    run.path.rename(tmp_path / "moved")
    config.run.name, config.run.out = "moved", str(tmp_path)
    assert find_run(config).path == tmp_path / "moved"


@pytest.mark.parametrize("text", ["{}", '{"fingerprint": 3}'])
def test_a_damaged_record_of_the_texts_is_named(config: Config, tokenizer: Tokenizer, text: str) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)
    run.data_file.write_text(text)
    with pytest.raises(InputError, match=r"data\.json does not say which texts .* delete it to go on"):
        run.begin(config, tokenizer, "data", overwrite=False)
    run.data_file.unlink()
    run.begin(config, tokenizer, "data", overwrite=False)


@pytest.mark.parametrize("line", ["{}", "[1]", "3", '{"step": "2"}', '{"step": 2, "loss": "low"}', '{"loss": 1.0}'])
def test_a_damaged_line_is_left_out_of_the_metrics(tmp_path: Path, line: str) -> None:
    run = RunFolder(tmp_path)
    run.metrics_file.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3, "loss": null}}\n')
    assert run.read_metrics() == [{"step": 1}, {"step": 3, "loss": None}]


def test_what_is_lost_of_the_metrics_is_said(config: Config, tokenizer: Tokenizer) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "data", overwrite=False)  # a line every ten steps
    assert run.find_lost_metrics(0) == []
    assert run.find_lost_metrics(30) == [f"{run.metrics_file} is missing; the metrics up to step 30 are lost"]
    lines = [f'{{"step": {step}}}\n' for step in (10, 20, 30)]
    run.metrics_file.write_text("".join(lines) + '{"ste')
    assert run.find_lost_metrics(30) == []
    assert run.find_lost_metrics(39) == []
    assert "no checkpoint was saved before; the run begins again" in run.find_lost_metrics(0)[0]
    run.metrics_file.write_text(lines[0] + "{}\n" + lines[2])
    assert run.find_lost_metrics(30) == [f"{run.metrics_file}: 1 of 3 lines are damaged and are left out"]
    run.metrics_file.write_text("".join(lines) + "123\n")
    assert run.find_lost_metrics(30) == [f"{run.metrics_file}: 1 of 4 lines are damaged and are left out"]
    run.metrics_file.write_text("".join(lines[:2]))
    assert run.find_lost_metrics(30) == [
        f"{run.metrics_file} ends at step 20; the metrics from there to step 30 are lost"
    ]


def test_a_line_cut_short_is_left_out_of_the_metrics(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert run.read_metrics() == []
    run.metrics_file.write_bytes(b'{"step": 1}\n{"step": 2}\n{"st')
    assert run.read_metrics() == [{"step": 1}, {"step": 2}]


def test_an_unfinished_run_is_not_continued_on_other_data(config: Config, tokenizer: Tokenizer) -> None:
    run = find_run(config)
    run.begin(config, tokenizer, "these texts", overwrite=False)
    run.begin(config, tokenizer, "these texts", overwrite=False)
    with pytest.raises(InputError, match="on other texts or another tokenizer"):
        run.begin(config, tokenizer, "other texts", overwrite=False)
    run.begin(config, tokenizer, "other texts", overwrite=True)
