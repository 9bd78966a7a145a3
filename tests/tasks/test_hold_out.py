"""Examples that are held out where no file for evaluation is given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.runs.commands import finetune
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import ColumnNames, ExampleFile, read_examples
from maskwright.tasks.hold_out import hold_out
from maskwright.tasks.qa.examples import read_questions
from tiny_bert import build_tiny_bert


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def read(folder: Path, records: list[dict[str, Any]]) -> ExampleFile:
    return read_examples(write(folder, records), ColumnNames())


def test_of_every_label_a_tenth_is_held_out_and_no_example_is_lost(tmp_path: Path) -> None:
    labels = ["often"] * 200 + ["now and then"] * 50 + ["rarely"] * 3 + ["once"]
    file = read(tmp_path, [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)])
    left, held_out = hold_out(file)
    assert Counter(one.label for one in held_out.examples) == {"often": 20, "now and then": 5, "rarely": 1}
    places = [one.place for one in [*left.examples, *held_out.examples]]
    assert sorted(places) == sorted(one.place for one in file.examples)
    assert [one.place for one in held_out.examples] != [one.place for one in file.examples[:26]]


def test_the_choice_depends_on_the_texts_alone(tmp_path: Path) -> None:
    records = [{"text": f"text {number}", "label": number % 3} for number in range(60)]
    first, again = (hold_out(read(tmp_path, some))[1].examples for some in (records, records[::-1]))
    assert {one.text for one in first} == {one.text for one in again}


def test_the_same_text_is_never_on_both_sides(tmp_path: Path) -> None:
    file = read(tmp_path, [{"text": f"text {number % 12}", "label": number % 2} for number in range(120)])
    left, held_out = hold_out(file)
    assert held_out.examples
    assert not {one.text for one in left.examples} & {one.text for one in held_out.examples}


def test_questions_about_one_context_stay_together(tmp_path: Path) -> None:
    records = [
        {"question": f"who {number}?", "context": f"the cat {number % 8}", "answer": "cat"} for number in range(40)
    ]
    left, held_out = hold_out(read_questions(write(tmp_path, records), TaskConfig(task="qa", model="m", train="t")))
    assert len(held_out.examples) == 5
    assert not {one.context for one in left.examples} & {one.context for one in held_out.examples}


def test_measured_numbers_are_no_classes(tmp_path: Path) -> None:
    file = read(tmp_path, [{"text": f"text {number}", "label": number / 7} for number in range(50)])
    assert len(hold_out(file)[1].examples) == 5


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    file = read(tmp_path, [{"text": "the same", "label": label} for label in ("a", "b")])
    with pytest.raises(InputError, match=r"train\.jsonl has too few texts to hold some out; .*--validation"):
        hold_out(file)


def test_a_run_without_validation_says_what_it_holds_out(
    command: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    build_tiny_bert(tokenizer).save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    train = write(tmp_path, [{"text": f"the cat {number}", "label": "ab"[number % 2]} for number in range(40)])
    words = ["classification", "training.device=cpu", "--model", tmp_path / "encoder", "--train", train, "--epochs", 1]
    result = command("finetune", *words, "--out", tmp_path / "run")
    assert (result.code, result.err) == (0, "")
    assert "so 4 of the 40 are held out of training, of each label alike" in " ".join(result.out.split())
    final = json.loads((tmp_path / "run" / "final.json").read_text(encoding="utf-8"))
    assert (final["train_examples"], final["examples"]) == (36, 4)


def test_a_configuration_without_validation_holds_out_too(tokenizer: Any, tmp_path: Path) -> None:
    build_tiny_bert(tokenizer).save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    train = write(tmp_path, [{"text": f"the cat {number}", "label": "ab"[number % 2]} for number in range(40)])
    config = TaskConfig(task="classification", model=str(tmp_path / "encoder"), train=str(train), epochs=1)
    finished = finetune(config, tmp_path / "run", settings=["training.device=cpu"])
    assert finished.figures[0]["examples"] == 4
