"""`maskwright eval MODEL embeddings`: pairs by correlation, classes by neighbors, two models on the same items."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from maskwright.inference.pipeline import pipeline
from tolerances import count_terms, rounding

Command = Callable[..., Any]


@pytest.fixture
def earlier(trained_run: Path) -> Path:
    return trained_run / "checkpoints" / "step-10"


@pytest.fixture
def pairs(tmp_path: Path, sentences: list[str]) -> Path:
    """As the STS benchmark is published."""
    generator = np.random.default_rng(0)
    lines = [
        f"main-news\tMSR\t2012\t{number}\t{generator.integers(0, 51) / 10}\t{first}\t{second}"
        for number, (first, second) in enumerate(zip(sentences[:30], reversed(sentences), strict=False))
    ]
    path = tmp_path / "sts.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_texts(path: Path, texts: list[str]) -> Path:
    """The subject is the class."""
    rows = [f'"{text}",{text.split()[1]}' for text in texts]
    path.write_text("\n".join(["text,category", *rows]) + "\n", encoding="utf-8")
    return path


def read(result: Any) -> dict[str, Any]:
    assert (result.code, result.err) == (0, "")
    content: dict[str, Any] = json.loads(result.out)
    return content


def find(lines: list[dict[str, Any]], group: str, measure: str) -> dict[str, Any]:
    (line,) = (line for line in lines if (line["group"], line["measure"]) == (group, measure))
    return line


def test_pairs_are_judged_by_correlation_and_texts_by_neighbors(
    command: Command, trained_run: Path, pairs: Path, tmp_path: Path, sentences: list[str]
) -> None:
    texts = write_texts(tmp_path / "texts.csv", sentences)
    content = read(command("eval", trained_run, "embeddings", pairs, texts, "--neighbors", 3, "--json"))
    lines = [line.split("\t") for line in pairs.read_text(encoding="utf-8").splitlines()]
    answers = pipeline("similarity", trained_run)([(line[5], line[6]) for line in lines])
    cosines, labels = [one["score"] for one in answers], [float(line[4]) for line in lines]
    for name, compute in (("spearman", stats.spearmanr), ("pearson", stats.pearsonr)):
        line = find(content["figures"], "sts.csv", name)
        assert line["n"] == 30
        error = rounding(count_terms(num_layers=1, width=32, length=32))
        assert line["mean"] == pytest.approx(compute(cosines, labels).statistic, abs=error)
        assert line["low"] < line["mean"] < line["high"]
    by_class = find(content["figures"], "texts.csv", "knn_accuracy")
    assert by_class["n"] == 60
    assert 0 <= by_class["low"] <= by_class["mean"] <= by_class["high"] <= 1
    assert content["suite"] == "embeddings"
    assert "3 nearest neighbors among the other texts of the file" in content["score"]
    table = command("eval", trained_run, "embeddings", pairs).out
    assert f"{find(content['figures'], 'sts.csv', 'spearman')['mean']:.4f}" in table


def test_neighbors_are_found_in_the_training_file(
    command: Command, trained_run: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """A text that the training file holds has itself as its nearest neighbor."""
    train, texts = write_texts(tmp_path / "train.csv", sentences), write_texts(tmp_path / "held.csv", sentences[::7])
    words = ("eval", trained_run, "embeddings", texts, "--train", train, "--neighbors", 1, "--json")
    assert find(read(command(*words))["figures"], "held.csv", "knn_accuracy")["mean"] == 1.0


def test_two_models_are_compared_on_the_same_items(
    command: Command, trained_run: Path, earlier: Path, pairs: Path, tmp_path: Path, sentences: list[str]
) -> None:
    texts = write_texts(tmp_path / "texts.csv", sentences)
    content = read(command("eval", trained_run, "embeddings", pairs, texts, "--against", earlier, "--json"))
    against = content["against"]
    assert against["figures"] == read(command("eval", earlier, "embeddings", pairs, texts, "--json"))["figures"]
    assert len(against["differences"]) == 3
    for line in against["differences"]:
        own, other = (
            find(lines, line["group"], line["measure"])["mean"] for lines in (content["figures"], against["figures"])
        )
        assert line["difference"] == pytest.approx(own - other)
        assert 0 < line["p_value"] <= 1


def test_wrong_files_and_options_are_refused_before_a_model_is_read(
    command: Command, pairs: Path, tmp_path: Path, sentences: list[str]
) -> None:
    absent = tmp_path / "absent"
    command("eval", absent, "embeddings", pairs, "--neighbors", 3).assert_refused("--neighbors is for labelled texts")
    command("eval", absent, "embeddings", pairs, "--seeds", 3).assert_refused("--seeds is for glue, not embeddings")
    texts = write_texts(tmp_path / "texts.csv", sentences)
    command("eval", absent, "embeddings", texts, "--train", pairs).assert_refused("holds pairs of texts")
    named = tmp_path / "named.jsonl"
    named.write_text(json.dumps({"premise": "a", "hypothesis": "b", "label": "entailment"}) + "\n", encoding="utf-8")
    command("eval", absent, "embeddings", named).assert_refused("named.jsonl:1 has the label 'entailment'")
