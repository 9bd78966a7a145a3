"""Examples that are held out where no file for evaluation is given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.runs.finetune_command import finetune
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import ColumnNames, ExampleFile, read_examples
from maskwright.tasks.hold_out import find_missing_labels, hold_out, hold_out_groups, read_groups
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


def test_a_share_of_one_label_alone_is_refused_and_a_missing_label_is_found(tmp_path: Path) -> None:
    """Equal texts stay together, so the text of a label that has no other is never held out."""
    texts = {"a": ["one", "two"], "b": ["three"]}
    records = [{"text": text, "label": label} for label, some in texts.items() for text in some * 10]
    with pytest.raises(InputError, match=r"train\.jsonl: of the label b no example would be held out.*--validation"):
        hold_out(read(tmp_path, records))
    with pytest.raises(InputError, match="of the label rare no example would be held out"):
        split_groups(
            tmp_path,
            [
                {"text": f"text {number}", "label": "rare" if number < 30 else "common", "patient": max(number, 29)}
                for number in range(330)
            ],
        )
    file = read(tmp_path, [*records, *({"text": f"text {number}", "label": "c"} for number in range(20))])
    assert find_missing_labels(file.examples, hold_out(file)[1].examples) == ["b"]
    numbers = read(tmp_path, [{"text": f"text {number}", "label": number / 7} for number in range(50)])
    assert find_missing_labels(numbers.examples, hold_out(numbers)[1].examples) == []


def test_too_few_texts_are_refused(tmp_path: Path) -> None:
    file = read(tmp_path, [{"text": "the same", "label": label} for label in ("a", "b")])
    with pytest.raises(InputError, match=r"train\.jsonl has too few texts to hold some out; .*--validation"):
        hold_out(file)


def split_groups(folder: Path, records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records that are left, and those that are held out."""
    path = write(folder, records)
    parts = hold_out_groups(read_examples(path, ColumnNames()), read_groups(path, "patient"))
    left, held_out = ([records[int(one.place.rpartition(":")[2]) - 1] for one in part.examples] for part in parts)
    return left, held_out


def test_groups_stay_whole_and_every_label_gives_about_a_tenth(tmp_path: Path) -> None:
    """Each patient has labels of both kinds, some have many records, and the rare label is in few of them."""
    records = [
        {
            "text": f"text {patient} {number}",
            "label": "rare" if patient % 7 == number == 0 else "common",
            "patient": patient,
        }
        for patient in range(120)
        for number in range(1 + patient % 9)
    ]
    left, held_out = split_groups(tmp_path, records)
    assert len(left) + len(held_out) == len(records)
    assert not {one["patient"] for one in left} & {one["patient"] for one in held_out}
    for label in ("rare", "common"):
        total = sum(one["label"] == label for one in records)
        assert sum(one["label"] == label for one in held_out) == pytest.approx(0.1 * total, abs=0.02 * total + 1)
    assert {one["patient"] for one in split_groups(tmp_path, records[::-1])[1]} == {one["patient"] for one in held_out}


def test_equal_texts_join_groups_and_records_without_a_group_stand_alone(tmp_path: Path) -> None:
    shared = [{"text": "the same", "label": 0, "patient": patient} for patient in ("a", "b")]
    others = [{"text": f"text {number}", "label": 0, "patient": "ab"[number % 2]} for number in range(20)]
    alone = [{"text": f"alone {number}", "label": 0, "patient": None if number % 2 else ""} for number in range(178)]
    left, held_out = split_groups(tmp_path, [*shared, *others, *alone])
    assert len(held_out) == 20
    assert {one["patient"] for one in held_out} <= {None, ""}
    assert sum(one["patient"] in ("a", "b") for one in left) == 22


def test_of_two_large_groups_the_smaller_is_held_out_and_one_alone_is_refused(tmp_path: Path) -> None:
    records = [{"text": f"text {number}", "label": 0, "patient": number < 30} for number in range(50)]
    assert {one["patient"] for one in split_groups(tmp_path, records)[1]} == {False}
    with pytest.raises(InputError, match=r"belong together by their groups.*--validation"):
        split_groups(tmp_path, [{**one, "patient": 1} for one in records])


@pytest.mark.parametrize("task", ["classification", "ner", "qa", "similarity"])
def test_every_task_is_grouped_and_says_so(
    command: Callable[..., Any], tokenizer: Any, tmp_path: Path, task: str
) -> None:
    build_tiny_bert(tokenizer).save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    columns: dict[str, Callable[[int], dict[str, Any]]] = {
        "classification": lambda number: {"text": f"the cat {number}", "label": "ab"[number % 2]},
        "ner": lambda number: {"words": ["the", "cat", str(number)], "tags": ["O", "B-X", "O"]},
        "qa": lambda number: {"question": f"who {number}?", "context": f"the cat {number}", "answer": "cat"},
        "similarity": lambda number: {"sentence1": f"the cat {number}", "sentence2": f"a cat {number}"},
    }
    train = write(tmp_path, [{**columns[task](number), "site": number % 20} for number in range(40)])
    words = ["finetune", task, "training.device=cpu", "--model", tmp_path / "encoder", "--train", train, "--epochs", 1]
    result = command(*words, "--group-by", "site", "--out", tmp_path / "run")
    assert (result.code, result.err) == (0, "")
    assert "so 4 of the 40 are held out" in result.out
    assert "all those of 2 of the 20 values of 'site'" in result.out
    command(*words, "--group-by", "place", "--out", tmp_path / "other").assert_refused("no column 'place'", "site")
    both = ["--group-by", "site", "--validation", train, "--out", tmp_path / "other"]
    command(*words, *both).assert_refused("--group-by", "--validation")


def test_files_without_columns_cannot_be_grouped(command: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text("the O\ncat B-X\n\na O\ndog B-X\n", encoding="utf-8")
    words = ["finetune", "ner", "--model", tmp_path, "--train", tmp_path / "train.conll", "--group-by", "site"]
    command(*words).assert_refused("--group-by", "names a column of a table", "train.conll")


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
    assert "is held out (too few texts" not in result.out
    final = json.loads((tmp_path / "run" / "final.json").read_text(encoding="utf-8"))
    assert (final["train_examples"], final["examples"]) == (36, 4)


def test_a_label_that_is_not_held_out_is_named(command: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> None:
    build_tiny_bert(tokenizer).save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    records = [{"text": f"the cat {number}", "label": "ab"[number % 2]} for number in range(40)]
    train = write(tmp_path, [*records, {"text": "a dog", "label": "c"}])
    words = ["classification", "training.device=cpu", "--model", tmp_path / "encoder", "--train", train, "--epochs", 1]
    result = command("finetune", *words, "--out", tmp_path / "run")
    assert (result.code, result.err) == (0, "")
    assert "no example of the label c is held out (too few texts or groups)" in " ".join(result.out.split())


def test_a_configuration_without_validation_holds_out_too(tokenizer: Any, tmp_path: Path) -> None:
    build_tiny_bert(tokenizer).save_pretrained(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    train = write(tmp_path, [{"text": f"the cat {number}", "label": "ab"[number % 2]} for number in range(40)])
    config = TaskConfig(task="classification", model=str(tmp_path / "encoder"), train=str(train), epochs=1)
    finished = finetune(config, tmp_path / "run", settings=["training.device=cpu"])
    assert finished.figures[0]["examples"] == 4
