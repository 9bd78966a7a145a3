"""`maskwright models`: words to answers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from maskwright.catalogue.table import read_table
from maskwright.cli.models import models_app
from maskwright.errors import InputError

_MODULES_AFTER_KNOWN_NAME = """
import json, sys
from maskwright.cli.models import models_app
models_app(["memory", "bert"], standalone_mode=False)
models_app(["choose", "--fastest"], standalone_mode=False)
print(json.dumps(sorted(sys.modules)))
"""


def run(*words: str, answers: str | None = None) -> str:
    result = CliRunner().invoke(models_app, words, input=answers)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_list_has_a_line_for_every_model() -> None:
    lines = run("list").splitlines()
    assert [line.split()[0] for line in lines] == [model.id for model in read_table().models]
    assert "125M" in lines[0]
    assert lines[0].endswith("MNLI-m 87.6")


def test_the_list_as_json_has_the_figures_and_their_sources() -> None:
    rows: list[dict[str, Any]] = json.loads(run("list", "--json"))
    row = next(row for row in rows if row["id"] == "distilbert/distilbert-base-uncased")
    assert row["memory"] == {"fp32": 264_000_000, "fp16": 132_000_000, "int8": 66_000_000}
    assert row["scores"][0]["value"] == 82.1
    assert "README" in row["scores"][0]["source"]


def test_memory_prints_the_row_of_a_model() -> None:
    assert run("memory", "bert-large").splitlines() == [
        "google-bert/bert-large-uncased",
        "  parameters  340M (as published; 335,141,888 counted in the encoder)",
        "        fp32  1.4 GB",
        "        fp16  680 MB",
        "        int8  340 MB",
    ]


def test_memory_as_json_is_exact() -> None:
    memory = json.loads(run("memory", "bert-large", "--json"))
    assert memory["model"] == "google-bert/bert-large-uncased"
    assert memory["fp32_bytes"] == 4 * memory["parameters"] == 1_360_000_000


def test_the_choice_is_printed_with_its_reason_figures_and_words_to_load_it() -> None:
    lines = run("choose", "--language", "en").splitlines()
    assert lines[0] == "FacebookAI/roberta-base"
    pairs = dict(line.strip().split("  ", 1) for line in lines[1 : lines.index("alternatives")])
    assert pairs["why"] == read_table().leaves["general"].why
    assert pairs["memory"] == "fp32 500 MB, fp16 250 MB, int8 125 MB"
    assert pairs["MNLI-m"].startswith("87.6 (Liu et al. 2019")
    assert pairs["adapt"] == "maskwright adapt FacebookAI/roberta-base --text corpus.txt"
    alternatives = [line.split()[0] for line in lines[lines.index("alternatives") + 1 :]]
    assert alternatives[:2] == ["answerdotai/ModernBERT-base", "google-bert/bert-base-uncased"]


def test_the_choice_for_a_task_shows_its_score_and_the_command_to_go_on_with() -> None:
    lines = run("choose", "--task", "qa", "--best-accuracy").splitlines()
    pairs = dict(line.strip().split("  ", 1) for line in lines[1 : lines.index("alternatives")])
    assert pairs["SQuAD-2-EM"].startswith("89.0 (He et al. 2023")
    assert "MNLI-m 91.8" in pairs["also"]
    assert pairs["finetune"].startswith("maskwright finetune qa --model deberta-v3-large ")
    assert lines[-1].endswith("SQuAD-2-EM 86.5")
    choice = json.loads(run("choose", "--task", "ner", "--json"))
    assert choice["task"] == "ner"
    assert choice["model"]["finetuning"]["finetune"].startswith("maskwright finetune ner --model FacebookAI/")


def test_the_choice_as_json_names_its_leaf() -> None:
    choice = json.loads(run("choose", "--language", "DE", "--max-parameters", "200M", "--json"))
    assert choice["leaf"] == "multilingual"
    assert choice["model"]["id"] == "google-bert/bert-base-multilingual-cased"
    assert len(choice["alternatives"]) == 2


@pytest.mark.parametrize(
    ("answers", "model"),
    [
        ("\n\n\n\n\n\n", "FacebookAI/roberta-base"),
        ("multi\n\n\ny\n\n", "distilbert/distilbert-base-multilingual-cased"),
        ("\nlegal\n\n\n\n\n", "nlpaueb/legal-bert-base-uncased"),
        ("\n\n2000\n\ny\n\n", "answerdotai/ModernBERT-large"),
        ("\n\n\n\n\n60M\n", "albert/albert-base-v2"),
    ],
)
def test_without_flags_the_questions_of_the_tree_are_asked(
    answers: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.cli.models._is_at_terminal", lambda: True)
    assert model in run("choose", answers=answers).splitlines()


def test_without_flags_and_without_a_terminal_the_flags_are_named() -> None:
    with pytest.raises(InputError) as error:
        run("choose")
    for flag in ("--language", "--length", "--fastest", "--best-accuracy", "--max-parameters", "--domain"):
        assert flag in str(error.value)


def test_a_known_name_is_answered_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", _MODULES_AFTER_KNOWN_NAME], capture_output=True, text=True, check=True)
    assert {"torch", "transformers", "numpy"}.isdisjoint(json.loads(done.stdout.splitlines()[-1]))
