"""Commands that are printed after a run: pasted into a shell, they work on its model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskwright.config import build_config
from maskwright.runs.next_commands import quote
from maskwright.runs.pretrain import pretrain
from maskwright.text.tokenizer.tokenizer import Tokenizer

Command = Callable[..., Any]


def train(values: dict[str, Any], **sections: dict[str, Any]) -> list[list[str]]:
    """The words of the commands that a run ends with."""
    for section, changes in sections.items():
        values = values | {section: values.get(section, {}) | changes}
    commands = pretrain(build_config(values), console=Console(quiet=True)).next_commands
    return [shlex.split(command)[1:] for command in commands]


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_a_masked_model_fills_a_held_out_sentence_with_its_own_mask_token(
    command: Command, tiny_values: dict[str, Any], sentences: list[str], tokenizer: Tokenizer, tmp_path: Path, mask: str
) -> None:
    run = {"name": "tiny", "out": str(tmp_path / "my runs")}
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer.backend.to_str().replace("[MASK]", mask), encoding="utf-8")
    (verb, folder, text), finetune = train(tiny_values, run=run, tokenizer={"path": str(file)})
    assert (verb, folder) == ("fill", str(tmp_path / "my runs" / "tiny"))
    assert text.count(mask) == 1
    before, after = text.split(mask)
    assert any(one.startswith(before.rstrip()) and one.endswith(after) for one in sentences)
    assert command(verb, folder, text).code == 0
    assert finetune[:4] == ["finetune", "classification", "--model", folder]


@pytest.mark.parametrize(
    ("mode", "verb"), [("clm", "generate"), ("rtd", "predict"), ("hybrid", "fill"), ("diffusion", "fill")]
)
def test_other_models_are_asked_what_they_can_do(
    command: Command, tiny_values: dict[str, Any], mode: str, verb: str
) -> None:
    first, *_ = train(tiny_values, training={"mode": mode})
    assert first[0] == verb
    assert command(*first).code == 0


def test_the_quickstart_ends_with_its_sentence_and_the_way_to_ones_own_text(
    tiny_values: dict[str, Any], sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.text.sources.read_python_documentation", lambda: sentences)
    data = {"train": "builtin:python", "validation_share": 0.05}
    fill, own = train(tiny_values, data=data, training={"max_steps": 1, "final_evaluation": False})
    assert fill[2] == "The for [MASK] is used to iterate over a sequence."
    assert own == ["train", "data.train=your.txt", "run.name=yours"]


@pytest.mark.parametrize("text", ["a cat", 'say "hi"', "it costs $5", "don't", "back\\slash", "`ls`", "stop!", "a\n b"])
def test_a_quoted_text_is_one_word_of_a_shell(text: str) -> None:
    assert shlex.split(quote(text)) == [" ".join(text.split())]
    assert "!" not in text or quote(text).startswith("'")  # a shell's history is read in double quotes too


def test_adapt_ends_with_commands_for_the_adapted_model(
    command: Command, trained_run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    words = ["training.max_steps=1", "training.batch_tokens=256", "training.precision=fp32"]
    general = ["--general", corpus_file, "--out", tmp_path / "adapted"]
    result = command("adapt", trained_run, "--text", corpus_file, *general, *words)
    assert result.code == 0
    lines = result.out.splitlines()
    fill = shlex.split(lines[lines.index("Try next:") + 1])
    assert fill[:3] == ["maskwright", "fill", str(tmp_path / "adapted")]
    assert command(*fill[1:]).code == 0


@pytest.mark.parametrize("task", ["classification", "pairs", "regression", "similarity"])
def test_finetune_ends_with_a_command_that_its_model_answers(
    command: Command, trained_run: Path, tmp_path: Path, task: str
) -> None:
    records = [
        {"text": f"the cat sees {number}", "other": "a long road", "label": number % 2, "score": number / 8}
        for number in range(8)
    ]
    file = tmp_path / "my examples.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    columns = ["--text-column", "text", "--label-column", "score" if task in ("regression", "similarity") else "label"]
    columns += ["--second-column", "other"] if task in ("pairs", "similarity") else []
    words = ["--model", trained_run, "--train", file, "--validation", file, "--out", tmp_path / "task", "--epochs", 1]
    result = command("finetune", task, *words, *columns, "training.precision=fp32")
    assert result.code == 0
    lines = result.out.splitlines()
    predict = shlex.split(lines[lines.index("Try next:") + 1])
    assert predict[1:3] == ["predict", "similarity" if task == "similarity" else "classify"]
    answered = command(*predict[1:])
    assert answered.code == 0
    assert answered.out.count("\n") == (8 if task == "pairs" else 1)
