from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def tokenizer_folder(tmp_path: Path, tokenizer: Any) -> Path:
    tokenizer.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_shards_are_made_described_and_trained_on(
    command: Command, corpus_file: Path, tokenizer_folder: Path, tiny_command: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "shards"
    words = ["--tokenizer", tokenizer_folder, "--out", out, "--validation-share", "0.2", "--workers", "1"]
    result = command("prepare", corpus_file, *words)
    assert result.code == 0, result
    assert "train: " in result.out
    assert "0 tokens dropped" in result.out
    assert "already prepared" in command("prepare", "shards", corpus_file, *words).out
    trained = command(*tiny_command, f"data.train={out}")
    assert trained.code == 0, trained


def test_quality_settings_are_taken_and_counted(
    command: Command, corpus_file: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    result = command(
        "prepare", corpus_file, "quality.min_words=8", "--tokenizer", tokenizer_folder, "--out", tmp_path / "out"
    )
    assert result.code == 0, result
    assert "dropped: under 8 words" in result.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["missing.txt"], "missing.txt"),
        (["{corpus}", "--validation-share", "1.5"], "validation share is 1.5"),
        (["{corpus}", "quality.min_wrds=8"], "did you mean 'min_words'"),
        (["{corpus}", "--memory", "1"], "a limit of memory is for the search for duplicates"),
        (["{corpus}", "quality.drop_duplicates=true", "--memory", "0"], "is 0 bytes; give at least 65,536"),
    ],
)
def test_mistakes_are_one_line_and_make_nothing(
    command: Command, corpus_file: Path, tokenizer_folder: Path, tmp_path: Path, words: list[str], complaint: str
) -> None:
    given = [word.format(corpus=corpus_file) for word in words]
    command("prepare", *given, "--tokenizer", tokenizer_folder, "--out", tmp_path / "out").assert_refused(complaint)
    assert not (tmp_path / "out").exists()


def test_an_unknown_tokenizer_is_refused(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    words = ["--tokenizer", tmp_path / "nowhere", "--out", tmp_path / "out"]
    command("prepare", corpus_file, *words).assert_refused("nowhere")
