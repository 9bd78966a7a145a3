from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tolerances import count_terms, rounding

Command = Callable[..., Any]
TEXT = "the cat [MASK] the green [MASK]."


@pytest.fixture
def model_folder(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a trained model, to damage."""
    return Path(shutil.copytree(trained_run / "model", tmp_path / "model"))


@pytest.mark.parametrize("top_k", [1, 4])
def test_json_has_the_best_candidates_of_every_mask(command: Command, trained_run: Path, top_k: int) -> None:
    result = command("fill", trained_run, TEXT, "--top-k", top_k, "--json")
    assert (result.code, result.err) == (0, "")
    answers = json.loads(result.out)
    assert len(answers) == 2
    for candidates in answers:
        assert len(candidates) == top_k
        scores = [candidate["score"] for candidate in candidates]
        assert scores == sorted(scores, reverse=True)
        assert 0 < sum(scores) <= 1
        assert set(candidates[0]) == {"score", "token", "token_str", "sequence"}
    best = answers[0][0]
    assert best["sequence"].startswith("the cat")
    assert best["token_str"] in best["sequence"]
    assert best["sequence"].count("[MASK]") == 1


def test_plain_answers_are_the_same_as_in_json(command: Command, trained_run: Path) -> None:
    answers = json.loads(command("fill", trained_run, TEXT, "--top-k", 3, "--json").out)
    blocks = command("fill", trained_run, TEXT, "--top-k", 3).out.strip().split("\n\n")
    assert len(blocks) == len(answers)
    for block, candidates in zip(blocks, answers, strict=True):
        lines = block.splitlines()
        assert len(lines) == len(candidates)
        for line, candidate in zip(lines, candidates, strict=True):
            assert line.split() == [
                f"{candidate['score']:.2%}",
                *candidate["token_str"].split(),
                *candidate["sequence"].split(),
            ]


def test_a_run_its_model_and_its_last_checkpoint_answer(command: Command, trained_run: Path, tmp_path: Path) -> None:
    answer = command("fill", trained_run, TEXT, "--json").out
    assert command("fill", trained_run / "model", TEXT, "--json").out == answer
    newest = command("fill", trained_run / "checkpoints" / "step-10", TEXT, "--json")
    assert newest.code == 0
    assert newest.out != answer

    unfinished = tmp_path / "unfinished"
    shutil.copytree(trained_run, unfinished, ignore=shutil.ignore_patterns("final.json", "step-12"))
    shutil.rmtree(unfinished / "model")
    assert command("fill", unfinished, TEXT, "--json").out == newest.out


def test_a_foreign_tool_reads_the_same_answer(command: Command, trained_run: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", model=str(trained_run / "model"), device="cpu")
    theirs = pipeline("the cat [MASK] the green house.", top_k=5)
    (ours,) = json.loads(command("fill", trained_run, "the cat [MASK] the green house.", "--json").out)
    assert [answer["token"] for answer in ours] == [answer["token"] for answer in theirs]
    error = rounding(count_terms(num_layers=1, width=32, length=32))
    assert [answer["score"] for answer in ours] == pytest.approx([answer["score"] for answer in theirs], abs=error)


def test_text_without_a_mask_is_refused(command: Command, trained_run: Path) -> None:
    command("fill", trained_run, "the cat sees the house.").assert_refused("the text has no [MASK] to fill")


def test_text_longer_than_the_model_is_refused(command: Command, trained_run: Path) -> None:
    command("fill", trained_run, "the cat " * 40 + "[MASK]").assert_refused("83 tokens, the model takes 32")


@pytest.mark.parametrize("top_k", [0, -1, 100_000])
def test_a_number_of_candidates_that_cannot_be_is_refused(command: Command, trained_run: Path, top_k: int) -> None:
    command("fill", trained_run, TEXT, "--top-k", top_k).assert_refused(f"top_k is {top_k}")


def test_a_missing_model_is_refused(command: Command, tmp_path: Path) -> None:
    command("fill", tmp_path / "absent", TEXT).assert_refused("no model folder at", "absent")


def test_an_empty_folder_is_refused(command: Command, tmp_path: Path) -> None:
    command("fill", tmp_path, TEXT).assert_refused("not a complete model folder: config.json is missing")


def test_a_file_is_refused(command: Command, corpus_file: Path) -> None:
    command("fill", corpus_file, TEXT).assert_refused("no model folder at", str(corpus_file))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_of_the_model_is_named(command: Command, model_folder: Path, name: str) -> None:
    (model_folder / name).unlink()
    command("fill", model_folder, TEXT).assert_refused(name)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_a_damaged_file_of_the_model_is_named(command: Command, model_folder: Path, name: str, damage: str) -> None:
    content = (model_folder / name).read_bytes()
    damaged = {"truncated": content[: len(content) // 2], "garbage": b"\x8f\x00garbage\xff" * 50, "empty": b""}[damage]
    (model_folder / name).write_bytes(damaged)
    command("fill", model_folder, TEXT).assert_refused(name)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gpt2"},
        {"hidden_size": 48},
        {"hidden_size": 33},
        {"hidden_size": "wide"},
        {"vocab_size": None},
        {"initializer_range": True},
        {"maskwright": 3},
        {"maskwright": {"masked_lm": {"mask_token_id": "four"}}},
    ],
    ids=str,
)
def test_a_configuration_that_does_not_fit_the_weights_is_refused(
    command: Command, model_folder: Path, change: dict[str, Any]
) -> None:
    file = model_folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    command("fill", model_folder, TEXT).assert_refused()


def test_the_tokenizer_of_another_model_is_refused(command: Command, model_folder: Path, tmp_path: Path) -> None:
    from maskwright.text.tokenizer.train import train_tokenizer

    words = " ".join(f"word{number}" for number in range(400))
    train_tokenizer([words], "word_level", min_frequency=1).save(model_folder)
    command("fill", model_folder, TEXT).assert_refused("the tokenizer has 405 tokens, the model")
