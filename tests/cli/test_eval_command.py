from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from maskwright.config import build_config
from maskwright.evaluation.likelihood import calculate_perplexity, score_texts
from maskwright.runs.eval.evaluate import evaluate_texts
from maskwright.runs.inputs import load_data
from maskwright.runs.model import load_model
from maskwright.runs.pretrain import pretrain

Command = Callable[..., Any]
PAIRS = [
    {"sentence_good": f"the cat {verb} a road.", "sentence_bad": f"a {verb} the road cat.", "linguistics_term": term}
    for term, verbs in (("order", ("sees", "likes", "carries")), ("other", ("follows", "remembers")))
    for verb in verbs
]
QUESTIONS = [
    {"masked_sentences": ["the <mask> sees the green house."], "obj_label": "cat", "predicate_id": "who"},
    {"masked_sentences": ["my old [MASK] likes a long road."], "obj_label": "teacher", "predicate_id": "who"},
    {"masked_sentences": ["the cat sees the green [MASK]."], "obj_label": "house", "predicate_id": "what"},
    {"masked_sentences": ["the cat sees the [MASK]."], "obj_label": "green house", "predicate_id": "what"},
]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    return write(tmp_path / "pairs.jsonl", PAIRS)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write(tmp_path / "questions.jsonl", QUESTIONS)


@pytest.fixture
def earlier(trained_run: Path) -> Path:
    """Another model with the same tokenizer: the run two steps before its end."""
    return trained_run / "checkpoints" / "step-10"


@pytest.fixture
def causal(tiny_values: dict[str, Any]) -> Path:
    tiny_values["training"] |= {"mode": "clm", "max_steps": 2}
    return pretrain(build_config(tiny_values), console=Console(quiet=True)).folder.path


def read(result: Any) -> dict[str, Any]:
    assert (result.code, result.err) == (0, "")
    content: dict[str, Any] = json.loads(result.out)
    return content


def find(lines: list[dict[str, Any]], group: str, measure: str) -> dict[str, Any]:
    (line,) = (line for line in lines if (line["group"], line["measure"]) == (group, measure))
    return line


def test_mlm_gives_the_evaluation_of_the_run_with_intervals(command: Command, trained_run: Path, corpus_file: Path):
    content = read(command("eval", trained_run, "mlm", corpus_file, "--json"))
    expected = evaluate_texts(str(trained_run), [str(corpus_file)], None, print)
    assert {name: content[name] for name in expected} == expected
    assert set(expected) == {"loss", "mlm_accuracy", "perplexity", "questions", "documents"}
    loss, perplexity = (find(content["figures"], "all", name) for name in ("loss", "perplexity"))
    assert (loss["n"], loss["mean"]) == (60, content["loss"])
    assert loss["low"] < loss["mean"] < loss["high"]
    assert perplexity["high"] == pytest.approx(math.exp(loss["high"]))


@pytest.mark.parametrize("mode", ["mlm", "clm"])
def test_perplexity_is_one_figure_wherever_it_stands(
    command: Command, tiny_values: dict[str, Any], corpus_file: Path, mode: str
):
    tiny_values["data"]["validation"] = str(corpus_file)
    tiny_values["masking"] = {"ratio": 0.4, "strategy": "whole_word"}
    tiny_values["training"] |= {"mode": mode, "precision": "fp32"}
    config = build_config(tiny_values)
    run = pretrain(config, console=Console(quiet=True)).folder
    final = json.loads(run.final_file.read_text())
    content = read(command("eval", run.path, "mlm", corpus_file, "--json"))
    model, _ = load_model(str(run.path))
    held_out = load_data(config, run.tokenizer, pytest.fail).validation
    # The same sums in batches of other sizes: fp32 rounds each differently.
    expected = pytest.approx(math.exp(final["loss"]), rel=1e-5)
    assert final["perplexity"] == expected
    assert content["perplexity"] == expected
    assert find(content["figures"], "all", "perplexity")["mean"] == expected
    assert calculate_perplexity(model, held_out) == expected
    assert f"<th>perplexity</th><td>{final['perplexity']:.1f}</td>" in run.report_file.read_text()
    scores = read(command("eval", run.path, "pll", corpus_file, "--json"))
    assert not [line for line in scores["figures"] if line["measure"] == "perplexity"]


def test_pll_gives_the_scores_of_the_texts(
    command: Command, trained_run: Path, corpus_file: Path, sentences: list[str]
):
    content = read(command("eval", trained_run, "pll", corpus_file, "--json"))
    scores = score_texts(*load_model(str(trained_run)), sentences)
    total = scores.log_likelihoods.sum()
    assert content["score"] == "pseudo-log-likelihood"
    assert (content["texts"], content["tokens"]) == (60, scores.num_tokens.sum())
    assert find(content["figures"], "all", "pseudo_log_likelihood")["mean"] == pytest.approx(total / 60)
    perplexity = find(content["figures"], "all", "pseudo_perplexity")
    assert perplexity["mean"] == pytest.approx(math.exp(-total / scores.num_tokens.sum()))
    corrected = read(command("eval", trained_run, "pll", corpus_file, "--word-l2r", "--json"))
    assert corrected["score"] == "pseudo-log-likelihood, word-l2r"


def test_a_causal_model_gives_its_log_likelihood(command: Command, causal: Path, trained_run: Path, corpus_file: Path):
    content = read(command("eval", causal, "pll", corpus_file, "--json"))
    assert content["score"] == "log-likelihood"
    assert {line["measure"] for line in content["figures"]} == {"log_likelihood", "text_perplexity"}
    command("eval", causal, "pll", corpus_file, "--against", trained_run).assert_refused("which do not compare")
    command("eval", causal, "pll", corpus_file, "--word-l2r").assert_refused("left to right already")


def test_minimal_pairs_has_a_line_for_each_phenomenon(command: Command, trained_run: Path, pairs: Path) -> None:
    content = read(command("eval", trained_run, "minimal-pairs", pairs, "--json"))
    numbers = {(line["kind"], line["group"]): line["n"] for line in content["figures"]}
    assert numbers == {
        ("all", "all"): 5,
        ("phenomenon", "order"): 3,
        ("phenomenon", "other"): 2,
        ("field", "pairs"): 5,
        ("paradigm", "pairs"): 5,
    }
    lines = command("eval", trained_run, "minimal-pairs", pairs).out.splitlines()
    assert [line.split()[:3] for line in lines[-3:]] == [
        ["all", "accuracy", "5"],
        ["order", "accuracy", "3"],
        ["other", "accuracy", "2"],
    ]
    for line, group in zip(lines[-3:], ("all", "order", "other"), strict=True):
        assert f"{find(content['figures'], group, 'accuracy')['mean']:.4f}" in line.split()[3]


def test_a_comparison_is_paired_and_tested(command: Command, trained_run: Path, earlier: Path, pairs: Path) -> None:
    content = read(command("eval", trained_run, "minimal-pairs", pairs, "--against", earlier, "--json"))
    alone = read(command("eval", earlier, "minimal-pairs", pairs, "--json"))
    against = content["against"]
    assert against["model"] == str(earlier)
    assert against["figures"] == alone["figures"]
    assert against["test"].startswith("sign-flip permutation test")
    difference = find(against["differences"], "all", "accuracy")
    means = [find(lines, "all", "accuracy")["mean"] for lines in (content["figures"], against["figures"])]
    assert difference["difference"] == pytest.approx(means[0] - means[1])
    assert 0 < difference["p_value"] <= 1
    table = command("eval", trained_run, "minimal-pairs", pairs, "--against", earlier).out
    assert f"{difference['p_value']:.4f}" == table.splitlines()[-3].split()[-1]


@pytest.mark.parametrize("suite", ["mlm", "pll"])
def test_a_model_against_itself_differs_in_nothing(command: Command, trained_run: Path, corpus_file: Path, suite: str):
    content = read(command("eval", trained_run, suite, corpus_file, "--against", trained_run, "--json"))
    assert content["against"]["differences"]
    for line in content["against"]["differences"]:
        assert (line["difference"], line["low"], line["high"], line["p_value"]) == (0, 0, 0, 1)


def test_training_is_seen_by_the_test(command: Command, trained_run: Path, earlier: Path, corpus_file: Path) -> None:
    content = read(command("eval", trained_run, "pll", corpus_file, "--against", earlier, "--json"))
    difference = find(content["against"]["differences"], "all", "pseudo_log_likelihood")
    assert difference["low"] > 0
    assert difference["p_value"] < 0.001


def test_cloze_counts_what_it_cannot_ask(command: Command, trained_run: Path, questions: Path) -> None:
    content = read(command("eval", trained_run, "cloze", questions, "--json"))
    assert content["questions"] == 4
    assert content["left_out"] == {"answer of several tokens": 1}
    at = [find(content["figures"], "all", f"precision@{k}") for k in (1, 5, 10)]
    assert [line["n"] for line in at] == [3, 3, 3]
    assert 0 <= at[0]["mean"] <= at[1]["mean"] <= at[2]["mean"] <= 1
    assert find(content["figures"], "who", "precision@1")["n"] == 2
    assert "1 left out (answer of several tokens)" in command("eval", trained_run, "cloze", questions).out


def test_too_long_texts_are_left_out_and_counted(command: Command, trained_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sees.\n" + "the cat " * 40 + "\na dog.\n")
    content = read(command("eval", trained_run, "pll", text, "--json"))
    assert content["left_out"] == {"longer than the model": 1}
    assert content["figures"][0]["n"] == 2
    text.write_text("the cat " * 40)
    command("eval", trained_run, "pll", text).assert_refused(
        "none of the 1 texts can be scored", "longer than the model"
    )


def test_a_causal_model_cannot_fill_gaps(command: Command, causal: Path, questions: Path, pairs: Path) -> None:
    command("eval", causal, "cloze", questions).assert_refused("does not see what follows")
    assert read(command("eval", causal, "minimal-pairs", pairs, "--json"))["score"] == "log-likelihood"


def test_a_detector_of_replaced_tokens_is_refused(command: Command, tiny_values: dict[str, Any], pairs: Path) -> None:
    tiny_values["training"] |= {"mode": "rtd", "max_steps": 2}
    detector = pretrain(build_config(tiny_values), console=Console(quiet=True)).folder.path
    command("eval", detector, "minimal-pairs", pairs).assert_refused("training.mode=rtd", "predicts none")


def test_models_with_other_tokens_are_not_asked_for_the_same_masks(
    command: Command, trained_run: Path, tiny_values: dict[str, Any], corpus_file: Path
) -> None:
    tiny_values["tokenizer"]["vocab_size"] = 120
    tiny_values["training"]["max_steps"] = 2
    other = pretrain(build_config(tiny_values), console=Console(quiet=True)).folder.path
    command("eval", trained_run, "mlm", corpus_file, "--against", other).assert_refused("different tokenizers")
    content = read(command("eval", trained_run, "pll", corpus_file, "--against", other, "--json"))
    assert content["against"]["differences"][0]["n"] == 60


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["minimal-pair", "x.jsonl"], "did you mean 'minimal-pairs'?"),
        (["cloze", "x.jsonl", "--word-l2r"], "--word-l2r is for pll and minimal-pairs, not cloze"),
        (["pll", "x.txt", "--max-length", "9"], "--max-length is for mlm and diffusion, not pll"),
        (["cloze", "absent.jsonl"], "no file, folder or glob match at absent.jsonl"),
    ],
)
def test_bad_usage_is_refused(command: Command, trained_run: Path, words: list[str], complaint: str) -> None:
    command("eval", trained_run, *words).assert_refused(complaint)


def test_bad_items_are_refused_before_a_model_is_loaded(command: Command, tmp_path: Path, questions: Path) -> None:
    result = command("eval", tmp_path / "absent", "minimal-pairs", questions)
    result.assert_refused(f"{questions}:1 has no field 'sentence_good'", "'masked_sentences'")
    assert result.out == ""


def test_an_empty_folder_of_items_is_refused(command: Command, trained_run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    command("eval", trained_run, "cloze", empty).assert_refused("holds no file that can be read")
