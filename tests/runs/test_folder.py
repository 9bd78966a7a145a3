from __future__ import annotations

from pathlib import Path

import pytest

from maskwright.config import Config, build_config
from maskwright.errors import InputError
from maskwright.runs.folder import RunFolder, find_run
from maskwright.text.tokenizer import Tokenizer


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
    from maskwright.text.tokenizer import load_tokenizer
    from maskwright.text.training import train_tokenizer

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
    run.config_file.write_text("".join(line for line in lines if "keep_checkpoints" not in line))
    assert find_run(config) == run
    config.training.keep_checkpoints = 7
    with pytest.raises(InputError, match=r"training\.keep_checkpoints=2, this command has .*=7"):
        find_run(config)


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
