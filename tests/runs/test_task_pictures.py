"""The pictures of a fine-tuning report: what they count, which classes they choose, and that they are drawn."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.models.bert import BERT
from maskwright.runs.finetune.report import (
    Picture,
    build_pictures_html,
    choose_confused,
    choose_worst,
    count_confusions,
    draw_class_bars,
    draw_confusion,
    draw_task_pictures,
    shorten,
)
from maskwright.tasks.retrieval.rerank import ListReranking
from maskwright.tasks.sequence.classification import NUM_BINS, Classification, calibrate
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity
from maskwright.text.tokenizer.tokenizer import Tokenizer

pytestmark = pytest.mark.draws

PNG = b"\x89PNG"
ONE_CLASS = {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "examples": 4.0}


def test_calibration_is_that_of_the_definition() -> None:
    """Two bins: 4 answers at 90% of which 2 are right, and 1 at 50% that is right."""
    confident = torch.tensor([0.9, 0.1]).log().expand(4, 2)
    logits = torch.cat([confident, torch.tensor([[0.5, 0.4999]]).log()])
    targets = torch.tensor([0, 0, 1, 1, 0])
    calibration = calibrate(logits, targets)
    assert calibration.counts.sum() == 5
    assert calibration.error == pytest.approx((4 * abs(0.9 - 0.5) + 1 * abs(0.5 - 1.0)) / 5, abs=1e-3)
    assert calibration.accuracy[13] == 0.5
    assert calibration.counts[13] == 4


def test_certain_answers_fall_into_the_last_bin() -> None:
    calibration = calibrate(torch.tensor([[100.0, -100.0]]), torch.tensor([0]))
    assert calibration.counts.nonzero().flatten().tolist() == [NUM_BINS - 1]
    assert calibration.error == 0.0


def test_rows_are_labels_and_columns_answers() -> None:
    counts = count_confusions(torch.tensor([1, 1, 0, 2]), torch.tensor([0, 0, 0, 2]), 3)
    assert counts.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_the_most_confused_classes_are_chosen_and_keep_their_order() -> None:
    counts = torch.eye(50, dtype=torch.long) * 100
    counts[40, 7] = 9
    counts[3, 45] = 8
    counts[40, 3] = 7
    assert choose_confused(counts, 4) == [3, 7, 40, 45]
    assert choose_confused(counts, 50) == list(range(50))


def test_the_classes_with_the_lowest_f1_are_chosen_among_those_with_examples() -> None:
    classes = {f"c{number}": {**ONE_CLASS, "f1": number / 10} for number in range(6)}
    classes["never"] = {**ONE_CLASS, "f1": 0.0, "examples": 0.0}
    assert choose_worst(classes, 3) == ["c0", "c1", "c2"]
    assert choose_worst(classes, 7) == list(classes)


@pytest.mark.parametrize("num_classes", [2, 21, pytest.param(150, marks=pytest.mark.slow)])
def test_matrices_and_bars_are_drawn_for_any_number_of_classes(num_classes: int) -> None:
    pytest.importorskip("matplotlib")
    names = [f"$class_{number}^{'x' * number}" for number in range(num_classes)]
    targets = torch.arange(3 * num_classes) % num_classes
    confusion = draw_confusion(names, count_confusions(targets.roll(1), targets, num_classes))
    bars = draw_class_bars(dict.fromkeys(names, ONE_CLASS))
    assert confusion.png.startswith(PNG)
    assert bars.png.startswith(PNG)
    is_part = num_classes > 20
    assert (f"The 20 of {num_classes} classes" in confusion.caption) == is_part
    assert (f"The 20 of {num_classes} classes" in bars.caption) == is_part


def test_long_names_are_shortened_and_dollars_are_no_formula() -> None:
    assert shorten("a" * 40) == "a" * 27 + "…"
    assert shorten("5$ or 6$") == r"5\$ or 6\$"


def test_each_task_has_its_pictures() -> None:
    pytest.importorskip("matplotlib")
    logits, targets = torch.randn(12, 3), torch.arange(12) % 3
    classes = dict.fromkeys("abc", ONE_CLASS)

    def titles(*arguments: Any) -> list[str]:
        return [picture.title for picture in draw_task_pictures(*arguments)]

    bars = "Scores of each class"
    assert titles(Classification("abc"), logits, targets, classes) == [bars, "Confusion matrix", "Reliability"]
    assert titles(MultiLabel("abc"), logits, (logits > 0).float(), classes) == [bars]
    assert titles(Regression(), logits[:, :1], logits[:, 1], {}) == ["Answers against labels"]
    pairs = torch.randn(12, 4, dtype=torch.float64)
    assert titles(ContrastiveSimilarity("mean", 0.05, None), logits[:, :1], pairs, {}) == ["Answers against labels"]
    pairs[:, 1] = float("nan")
    assert titles(ContrastiveSimilarity("mean", 0.05, None), logits[:, :1], pairs, {}) == []


def test_a_reranker_that_compares_documents_has_no_labels_to_draw() -> None:
    assert draw_task_pictures(ListReranking(), torch.randn(4, 3), torch.eye(4, 3), {}) == []


def test_names_in_a_report_are_no_markup() -> None:
    html = build_pictures_html([Picture("a", "<script>", PNG)])
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def run_finetune(command: Callable[..., Any], tokenizer: Tokenizer, folder: Path) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **shape).save_pretrained(folder / "model")
    tokenizer.save(folder / "model")
    lines = [{"text": f"the cat {verb}", "label": label} for verb, label in (("sees", "a"), ("likes", "b"))] * 4
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    files = ["--train", folder / "train.jsonl", "--validation", folder / "train.jsonl"]
    words = ["classification", "training.device=cpu", "--model", folder / "model", "--epochs", 1, *files]
    return command("finetune", *words, "--out", folder / "out")


def test_a_report_holds_its_pictures_and_the_calibration_error(
    command: Callable[..., Any], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    result = run_finetune(command, tokenizer, tmp_path)
    assert result.code == 0, result.err
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert report.count("<img") == 3
    assert "<svg" in report
    for title in ("Scores of each class", "Confusion matrix", "Reliability", "Curves"):
        assert f"<h2>{title}</h2>" in report
    figures = json.loads((tmp_path / "out" / "final.json").read_text(encoding="utf-8"))
    assert 0.0 <= figures["calibration_error"] <= 1.0
    assert f"Expected calibration error {figures['calibration_error']:.3f}" in report


def test_without_matplotlib_the_report_is_written_and_says_so(
    command: Callable[..., Any], tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def refuse(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    result = run_finetune(command, tokenizer, tmp_path)
    assert result.code == 0, result.err
    assert "pictures need an extra" in result.out
    assert "<img" not in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
