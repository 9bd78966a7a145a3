"""What users get wrong with labelled files and fine-tuned models: exit code 2, one sentence, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.heads import build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import rounding

Command = Callable[..., Any]
CPU = ["training.device=cpu", "training.precision=fp32"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128}
GOOD = [{"text": f"the cat {verb} a road", "label": label} for verb, label in (("sees", "a"), ("likes", "b"))] * 4


def build_encoder(tokenizer: Tokenizer) -> BERT:
    torch.manual_seed(0)
    return BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **SHAPE)


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of an `encoder`, a model for masked tokens (`mlm`) and a `classifier`."""
    folder = tmp_path_factory.mktemp("models")
    encoder = build_encoder(tokenizer)
    encoder.save_pretrained(folder / "encoder")
    tokenizer.save(folder / "encoder")
    tokens = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    MaskedLanguageModel(encoder, tokenizer.vocab_size, **tokens).save_pretrained(folder / "mlm", tokenizer)
    task_head = build_sequence_head(encoder, 2, {})
    TaskModel(encoder, task_head, Classification(["good", "bad"])).save_pretrained(folder / "classifier", tokenizer)
    return folder


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def finetune(command: Command, models: Path, tmp_path: Path) -> Command:
    """Fine-tunes on these examples, as far as they let it."""

    def run(train: Any = GOOD, validation: Any = GOOD, *words: object, task: str = "classification") -> Any:
        files = []
        for name, content in (("train", train), ("validation", validation)):
            is_text = isinstance(content, str)
            path = tmp_path / f"{name}.{'csv' if is_text else 'jsonl'}"
            if is_text:
                path.write_text(content, encoding="utf-8")
            else:
                write(path, content)
            files += [f"--{name}", path]
        given = ["finetune", task, *CPU, "--model", models / "encoder", *files, "--out", tmp_path / "out", *words]
        result = command(*given, "--epochs", 1)
        if result.code:
            assert not (tmp_path / "out").exists()
        return result

    return run


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"text": "the cat"}, "has no label in 'label'"),
        ({"text": "the cat", "label": None}, "has no label in 'label'"),
        ({"text": "the cat", "label": " "}, "has no label in 'label'"),
        ({"text": "the cat", "label": {"a": 1}}, "has a dict as its label"),
        ({"text": 3.5, "label": "a"}, "has a float in 'text'"),
    ],
    ids=str,
)
def test_an_example_without_text_or_label_is_named_with_its_line(
    finetune: Command, record: dict[str, Any], told: str
) -> None:
    finetune([*GOOD, record], GOOD).assert_refused(f"train.jsonl:{len(GOOD) + 1} {told}")


def test_texts_that_are_all_empty_are_refused(finetune: Command) -> None:
    finetune([{**record, "text": " "} for record in GOOD], GOOD).assert_refused(
        "train.jsonl holds no example with text"
    )


def test_a_label_that_training_does_not_have_is_named(finetune: Command) -> None:
    finetune(GOOD, [*GOOD, {"text": "the dog", "label": "c"}]).assert_refused(
        "validation.jsonl:9", "'c'", "known are a, b"
    )


def test_a_column_that_is_not_there_is_answered_with_those_that_are(finetune: Command) -> None:
    for option in ("--text-column", "--label-column", "--second-column"):
        finetune(GOOD, GOOD, option, "body").assert_refused("has no column 'body'", "'text'", "'label'")


@pytest.mark.parametrize("content", ["", "\n\n", "text,label\n"], ids=["empty", "blank", "header"])
def test_a_training_file_of_nothing_is_refused(finetune: Command, content: str) -> None:
    finetune(content, GOOD).assert_refused("train.csv", "no")


def test_a_training_file_that_is_not_there_is_refused(command: Command, models: Path, tmp_path: Path) -> None:
    files = ["--train", tmp_path / "absent.csv", "--validation", tmp_path / "absent.csv"]
    words = ["finetune", "classification", "--model", models / "encoder", *files, "--out", tmp_path / "out"]
    command(*words).assert_refused("absent.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_text_is_refused(command: Command, models: Path, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"text,label\n\xff\xfe\x00,a\n")
    files = ["--train", tmp_path / "train.csv", "--validation", tmp_path / "train.csv"]
    words = ["finetune", "classification", "--model", models / "encoder", *files, "--out", tmp_path / "out"]
    command(*words).assert_refused("train.csv")
    assert not (tmp_path / "out").exists()


def test_one_label_is_nothing_to_learn(finetune: Command) -> None:
    finetune([record for record in GOOD if record["label"] == "a"], GOOD).assert_refused("only the label 'a'")


def test_names_are_no_measures(finetune: Command) -> None:
    finetune(GOOD, GOOD, task="regression").assert_refused("'a'", "regression learns numbers")


def test_texts_alone_are_no_pairs(finetune: Command) -> None:
    finetune(GOOD, GOOD, task="pairs").assert_refused("train.jsonl", "second")


def test_a_task_that_is_not_there_is_named(finetune: Command) -> None:
    finetune(GOOD, GOOD, task="clasification").assert_refused("no task 'clasification'", "classification")


def test_a_classifier_is_fine_tuned_anew_and_its_head_is_said_to_be_replaced(finetune: Command, models: Path) -> None:
    result = finetune([*GOOD, {"text": "", "label": "a"}], GOOD, "--model", models / "classifier")
    assert result.code == 0, result.err
    assert "holds BertForSequenceClassification, fine-tuned before: its last layer is replaced" in result.out
    assert "1 with an empty text left out" in result.out


@pytest.mark.parametrize("num_sentences", [1_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_a_long_text_is_answered_and_not_cut(
    command: Command, models: Path, tmp_path: Path, num_sentences: int
) -> None:
    text = "the quiet river sees a long road. " * num_sentences
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    result = command("predict", "classify", models / "classifier", tmp_path / "long.jsonl", "--top-k", 9)
    assert result.code == 0, result.err
    answers = json.loads(result.out)["answers"]
    assert {answer["label"] for answer in answers} == {"good", "bad"}
    assert sum(answer["score"] for answer in answers) == pytest.approx(1.0, abs=rounding(num_sentences))  # of windows


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", "classify", "{classifier}", ""), ["text 1 is empty"]),
        (("predict", "classify", "{classifier}", "a", "--top-k", "0"), ["top_k is 0"]),
        (("predict", "classify", "{classifier}", "a", "--label", "b"), ["classify has no option 'labels'"]),
        (("predict", "classify", "{classifier}", "-", "--second-column", "b"), ["not read from standard input"]),
        (("predict", "classify", "{mlm}", "a"), ["BertForMaskedLM", "fine-tuned for a task"]),
        (("predict", "classify", "{encoder}", "a"), ["BertModel", "fine-tuned for a task"]),
        (
            ("predict", "zero-shot", "{classifier}", "a", "--label", "b"),
            ["'good', 'bad'", "natural language inference"],
        ),
        (("predict", "zero-shot", "{mlm}", "a", "--label", "b"), ["BertForMaskedLM", "fine-tuned for a task"]),
        (("predict", "zero-shot", "{classifier}", "a"), ["at least one label"]),
        (("predict", "zero-shot", "{classifier}", "a", "--label", "b", "--hypothesis", "so"), ["'so' has no {}"]),
        (("fill", "{classifier}", "the [MASK]"), ["BertForSequenceClassification", "classify"]),
        (("predict", "fill-mask", "{classifier}", "the [MASK]"), ["BertForSequenceClassification", "classify"]),
        (("eval", "{classifier}", "mlm", "{texts}"), ["BertForSequenceClassification", "classify"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_models_and_questions_that_do_not_fit_are_refused(
    command: Command, models: Path, corpus_file: Path, tmp_path: Path, words: tuple[str, ...], told: list[str]
) -> None:
    places = {name: str(models / name) for name in ("classifier", "mlm", "encoder")} | {"texts": str(corpus_file)}
    for name, place in places.items():
        words = tuple(word.replace(f"{{{name}}}", place) for word in words)
    command(*words).assert_refused(*told)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_of_predictions_is_named_and_leaves_no_file(
    command: Command, models: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "texts.jsonl", GOOD)
    words = ("predict", "classify", models / "classifier", file, "--out", tmp_path / "out.jsonl")
    command(*words, "--column", "body").assert_refused("has no column 'body'", "'text'", "'label'")
    command(*words, "--second-column", "other").assert_refused("has no column", "'text'", "'label'")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


def test_pairs_in_a_file_are_classified(command: Command, models: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", [{"a": "the cat", "b": "a dog"}, {"a": "one", "b": "road"}])
    words = ("predict", "classify", models / "classifier", file, "--column", "a", "--second-column", "b")
    records = [json.loads(line) for line in command(*words).out.splitlines()]
    assert [(record["first"], record["second"]) for record in records] == [("the cat", "a dog"), ("one", "road")]
    assert all(record["label"] in ("good", "bad") for record in records)
