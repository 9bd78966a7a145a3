"""`maskwright finetune`: words to a run, a table, and refusals of one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from maskwright.cli.app import app
from maskwright.tasks.config import TaskConfig
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

Command = Callable[..., Any]
CPU = ["training.device=cpu", "training.precision=fp32"]


@pytest.fixture
def words(tokenizer: Tokenizer, tmp_path: Path) -> list[object]:
    """A command that takes a second."""
    encoder = build_tiny_bert(tokenizer, hidden_size=16, num_hidden_layers=1, max_position_embeddings=16)
    encoder.save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    lines = [f"the cat {verb} the house\t{label}" for verb, label in (("sees", 0), ("likes", 1))] * 8
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    files = ["--train", tmp_path / "train.tsv", "--validation", tmp_path / "dev.tsv"]
    return ["finetune", "classification", *CPU, "--model", tmp_path / "model", *files, "--out", tmp_path / "out"]


def test_a_run_says_what_it_read_and_what_came_out(command: Command, words: list[object], tmp_path: Path) -> None:
    result = command(*words, "--epochs", 1, "--batch-size", 8)
    assert result.code == 0, result.err
    assert "train: 16 examples of" in result.out
    assert "text 'sentence', label 'label'" in result.out
    assert "labels: 0 50%, 1 50%" in result.out
    assert re.search(r"held-out examples +loss +accuracy +macro_f1 +matthews", result.out)
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    command(*words, "--epochs", 1, "--batch-size", 8).assert_refused("holds a finished run", "--overwrite")


def test_seeds_are_listed_with_mean_and_deviation(command: Command, words: list[object], tmp_path: Path) -> None:
    result = command(*words, "--epochs", 1, "--seeds", 2)
    assert result.code == 0, result.err
    rows = [line.split()[0] for line in result.out.splitlines() if re.match(r" *(seed-\d|mean|deviation) ", line)]
    assert rows == ["seed-0", "seed-1", "mean", "deviation"]
    assert (tmp_path / "out" / "seeds.json").is_file()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--label-column", "gold"], ["has no column 'gold'", "'sentence', 'label'", "--label-column"]),
        (["--epochs", "0"], ["epochs"]),
        (["--layer-decay", "1.5"], ["layer_decay"]),
        (["masking.ratio=0.3"], ["has no effect on fine-tuning"]),
        (["--class-weights", "1,2,3"], ["there are 2 classes"]),
        (["--seeds", "0"], ["seeds"]),
    ],
)
def test_mistakes_are_answered_in_one_line_and_write_nothing(
    command: Command, words: list[object], tmp_path: Path, more: list[str], told: list[str]
) -> None:
    command(*words, *more).assert_refused(*told)
    assert not (tmp_path / "out").exists()


def test_of_several_processes_the_first_alone_tells_what_is_missing(
    command: Command, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nervaluate.evaluator", None)
    (tmp_path / "words.conll").write_text("the O\ncat B-PER\n\nthe O\nhouse B-LOC\n", encoding="utf-8")
    files = ["--train", tmp_path / "words.conll", "--validation", tmp_path / "words.conll", "--epochs", 1]
    told = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        result = command("finetune", "ner", *CPU, "--model", tmp_path / "model", *files, "--out", tmp_path / rank)
        assert result.code == 0, result.err
        told.append(result.err)
    assert told == [
        "warning: no scores for entities found in part: they need an extra, pip install 'maskwright[eval]'\n",
        "",
    ]


def test_a_missing_option_is_named(command: Command) -> None:
    command("finetune", "classification", "--model", "x").assert_refused("--train")


def test_help_tells_the_defaults_that_count() -> None:
    group: Any = typer.main.get_command(app)
    helps = {option.name: option.help for option in group.commands["finetune"].params}
    for name in ("epochs", "batch_size"):
        assert helps[name].endswith(f"unset: {TaskConfig.model_fields[name].default}.")
    assert TaskConfig.model_fields["learning_rate"].default is None
    assert helps["learning_rate"].endswith("unset: suits the encoder.")


def test_help_shows_an_example(command: Command) -> None:
    result = command("finetune", "--help")
    assert result.code == 0
    assert "maskwright finetune classification --model bert-base-uncased" in re.sub(r"\s+", " ", result.out)
