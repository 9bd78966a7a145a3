"""Whole runs of question answering: they learn, resume exactly, and say what was lost."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from interruption import assert_resumes_exactly
from qa_lab import build_question, build_questions, write_squad
from rich.console import Console
from task_lab import Lab, write_lines
from transformers import AutoModelForQuestionAnswering

from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.runs.finetune.finetune import FinishedTask, finetune
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.model import TaskModel
from maskwright.tasks.qa.question_answering import score_text
from tolerances import assert_rounded, count_terms

SETTINGS = ("training.device=cpu", "training.precision=fp32", "training.log_every_steps=4")


def run(config: TaskConfig, out: Path, *settings: str) -> FinishedTask:
    return finetune(config, out, settings=[*SETTINGS, *settings], console=Console(quiet=True))


@pytest.fixture
def questions(lab: Lab) -> Lab:
    """One question in five has no answer, and some contexts are longer than the model."""
    for name, count, seed in (("train", 96, 0), ("validation", 40, 1)):
        write_squad(lab.folder / f"{name}.json", build_questions(count, seed, unanswered=0.2))
    return lab


def configure(lab: Lab, **values: Any) -> TaskConfig:
    files = {name: str(lab.folder / f"{name}.json") for name in ("train", "validation")}
    return lab.config("qa", **{"text_column": None, **files, **values})


def test_a_run_learns_to_answer_and_leaves_a_model_that_transformers_reads(questions: Lab, tmp_path: Path) -> None:
    config = configure(questions, epochs=5, max_length=20, doc_stride=3, max_answer_length=2)
    finished = run(config, tmp_path / "run")
    (figures,) = finished.figures
    assert finished.metric == "window_f1"
    assert figures["window_f1"] > 0.9
    assert min(figures["exact"], figures["f1"], figures["best_f1"]) > 0.9
    assert figures["no_answer_exact"] > 0.5
    assert figures["questions"] == 40 < figures["examples"]
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"{figures['exact']:.4f}" in report
    theirs = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "run" / "model").eval()
    ours = TaskModel.from_pretrained(tmp_path / "run")
    ids = torch.randint(5, 100, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given, expected = ours(input_ids=ids).logits, theirs(input_ids=ids)
    num_terms = count_terms(num_layers=2, width=32, length=20)
    assert_rounded(given, torch.stack([expected.start_logits, expected.end_logits], dim=-1), num_terms)

    answer = pipeline("qa", tmp_path / "run", device="cpu", handle_impossible_answer=True)
    held_out = build_questions(40, 1, unanswered=0.2)
    replies = answer([(one["question"], one["context"]) for one in held_out])
    gold = [one["answers"][0]["text"] if one["answers"] else "" for one in held_out]
    assert sum(reply["answer"] == text for reply, text in zip(replies, gold, strict=True)) >= 36


def test_the_scores_are_those_of_the_answers_that_the_pipeline_gives(questions: Lab, tmp_path: Path) -> None:
    """Of a model that knows little, so that many spans are nearly as good as the best."""
    windows = {"max_length": 20, "doc_stride": 3, "max_answer_length": 2}
    (figures,) = run(configure(questions, epochs=1, **windows), tmp_path / "run", "training.max_steps=4").figures
    answer = pipeline("qa", tmp_path / "run", device="cpu", handle_impossible_answer=True, **windows)
    held_out = build_questions(40, 1, unanswered=0.2)
    replies = answer([(one["question"], one["context"]) for one in held_out])
    scores = [
        score_text(reply["answer"], [one["text"] for one in asked["answers"]])
        for reply, asked in zip(replies, held_out, strict=True)
    ]
    assert figures["exact"] == pytest.approx(sum(exact for exact, _ in scores) / 40)
    assert figures["f1"] == pytest.approx(sum(f1 for _, f1 in scores) / 40)


@pytest.mark.parametrize(("nothing", "exact"), [(6.5, 1.0), (6.8, 0.0)])
def test_words_that_stand_in_two_places_have_the_score_of_both(lab: Lab, nothing: float, exact: float) -> None:
    """Each place is less probable than the other word (6 against 6.2), both together are more (6 + log 2)."""
    record = {"question": "who?", "context": "cat dog cat", "answers": [{"text": "cat", "answer_start": 0}]}
    unanswered = {**record, "answers": []}
    write_squad(lab.folder / "validation.json", [record, unanswered])
    write_squad(lab.folder / "train.json", [record])
    inputs = load_task_inputs(configure(lab, max_answer_length=1), lambda text: None)
    examples, task = inputs.validation.features.examples, inputs.build_model(0).task
    context = examples[0].window.context
    places = [examples[0].window.find_place(span) for span in ((0, 3), (4, 7), (8, 11))]
    assert len(context.ids) == 3, "each word is a token"
    logits = torch.zeros(1, 1, 16, 3)
    for place, score in zip(places, (3.0, 3.1, 3.0), strict=True):
        logits[0, 0, place[0]] = torch.tensor([score, score, 1.0])
    logits[0, 0, 0, :2] = nothing / 2
    answers = task.condense(logits)[0].repeat(2, 1, 1)
    scores = task.score_answers(answers, inputs.validation.targets, examples)
    assert scores["has_answer_exact"] == exact
    assert scores["no_answer_exact"] == 1.0 - exact


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    questions: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_squad(questions.folder / "train.json", build_questions(32, 0, unanswered=0.2))
    config = configure(questions, patience=2)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=5)


def test_the_user_is_told_what_became_of_questions_and_answers(questions: Lab) -> None:
    records = build_questions(8, seed=0)
    records[3]["answers"] = [{"text": "a bear", "answer_start": 0}]
    records[4]["question"] = "who likes it " * 30
    write_squad(questions.folder / "train.json", records)
    said: list[str] = []
    config = configure(questions, max_question_length=5, max_length=16)
    inputs = load_task_inputs(config, said.append)
    told = "\n".join(said)
    assert "train: 8 questions about 8 contexts of" in told
    assert "1 answers not found in their context, left out of training, first:" in told
    assert "train.json: q3 'a bear'" in told
    assert "train: 1 questions have more than 5 tokens and lose their end" in told
    assert f"train: 8 questions in {inputs.train.num_examples} windows of at most 16 tokens" in told
    assert "of the windows have an answer" in told


def test_the_longest_answer_is_what_the_option_says(questions: Lab) -> None:
    inputs = load_task_inputs(configure(questions, max_answer_length=3), lambda text: None)
    logits = torch.zeros(1, 1, 12, 3)
    logits[..., 2:, 2] = 1.0
    logits[..., 3, 0], logits[..., 9, 1] = 9.0, 9.0
    kept = inputs.build_model(0).task.condense(logits)[0, 0, 2:]
    assert int((kept[:, 2] - kept[:, 1]).max()) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"class_weights": "balanced"}, "--class-weights is for classes"),
        ({"label_smoothing": 0.1}, "--label-smoothing is for classes"),
        ({"metric": "exact"}, "--metric is 'exact', which this task does not have; did you mean 'window_exact'"),
        ({"doc_stride": 30}, "the stride is 30 tokens, a window beside the question of .*: q0 has"),
        (
            {"task": "classification", "doc_stride": 3},
            "--doc-stride is for qa; classification has no use",
        ),
        ({"max_answer_length": 0}, "max_answer_length"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    questions: Lab, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    build = questions.config if "task" in values else partial(configure, questions)
    with pytest.raises(InputError, match=words):
        run(build(**{"max_length": 16, **values}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_without_an_answer_is_nothing_to_learn_from(lab: Lab, tmp_path: Path) -> None:
    records = [build_question(random.Random(one), 6, is_answered=False) for one in range(3)]
    for name in ("train", "validation"):
        write_lines(lab.folder / f"{name}.jsonl", records)
    with pytest.raises(InputError, match="has an answer; there is nothing to learn"):
        run(lab.config("qa", text_column=None), tmp_path / "out")
