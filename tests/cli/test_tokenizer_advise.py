from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskwright.cli.tokenizer import advise
from maskwright.runs.texts import is_held_out
from maskwright.text.tokenizer.domain_tokens import DEFAULT_MAX_TOKENS, DEFAULT_MIN_COUNT
from maskwright.text.tokenizer.tokenizer import load_tokenizer

Command = Callable[..., Any]
WORDS = ["--min-count", 5]


@pytest.fixture(scope="session")
def domain_texts() -> list[str]:
    """Different texts, each with the same three words of a domain."""
    return [f"the cat sees {number} gantries. a tricorn garden follows the gantries" for number in range(80)]


@pytest.fixture(scope="session")
def domain_file(domain_texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("domain") / "domain.txt"
    path.write_text("\n".join(domain_texts) + "\n", encoding="utf-8")
    return path


def test_figures_before_and_after_are_of_texts_the_words_were_not_chosen_from(
    command: Command, trained_run: Path, domain_file: Path, domain_texts: list[str]
) -> None:
    done = command("tokenizer", "advise", trained_run, domain_file, *WORDS, "--json")
    assert done.code == 0, done
    described = json.loads(done.out)
    held_out = [text for text in domain_texts if is_held_out(text, 0.1)]
    assert described["num_texts_held_out"] == len(held_out) > 0
    assert described["num_texts_chosen_from"] == len(domain_texts) - len(held_out)
    assert described["tokens"][0]["word"] == "gantries"
    assert described["tokens"][0]["count"] == 2 * described["num_texts_chosen_from"]
    before, after = described["before"], described["after"]
    assert before["num_words"] == after["num_words"] == 11 * len(held_out)
    assert before["fragmented_share"] > 0
    assert after["fragmented_share"] == 0
    saved = sum(
        len(token["pieces"]) - 1 for token in described["tokens"] for _ in range(1 + (token["word"] == "gantries"))
    )
    assert before["num_tokens"] - after["num_tokens"] == saved * len(held_out)
    assert described["saved_share"] == pytest.approx(1 - after["num_tokens"] / before["num_tokens"])
    assert described["num_added_parameters"] == len(described["tokens"]) * (32 + 1)


def test_the_figures_are_shown_as_text(command: Command, trained_run: Path, domain_file: Path) -> None:
    done = command("tokenizer", "advise", trained_run, domain_file, *WORDS)
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert any(line.startswith("tokenizer WordPiece, ") for line in lines)
    assert any(line.startswith("measured on ") and "other texts" in line for line in lines)
    assert any(line.startswith("tokens per word ") and line.endswith("1.000") for line in lines)
    assert any(line.startswith("tokens saved ") and line.endswith("%") for line in lines)
    assert any(line.startswith("cost ") and line.endswith(" parameters") for line in lines)
    assert any(" gantries: g ##a" in line for line in lines)


def test_the_extended_tokenizer_is_written_and_serves_as_one(
    command: Command, trained_run: Path, domain_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "tokenizer"
    words = ["tokenizer", "advise", trained_run, domain_file, *WORDS, "--max-tokens", 1, "--out", out]
    done = command(*words, "--json")
    assert done.code == 0, done
    assert [token["word"] for token in json.loads(done.out)["tokens"]] == ["gantries"]
    tokenizer, old = load_tokenizer(out), load_tokenizer(trained_run / "model")
    assert tokenizer.vocab_size == old.vocab_size + 1
    assert tokenizer.encode("gantries")[1:-1] == [old.vocab_size]
    again = command("tokenizer", "advise", out, domain_file, *WORDS, "--json")
    described = json.loads(again.out)
    assert "gantries" not in {token["word"] for token in described["tokens"]}
    assert described["num_added_parameters"] is None, "no model lies beside the tokenizer"
    command(*words).assert_refused("exists already; give a new folder as --out")


def test_a_tokenizers_file_will_do(command: Command, trained_run: Path, domain_file: Path) -> None:
    done = command("tokenizer", "advise", trained_run / "model" / "tokenizer.json", domain_file, *WORDS, "--json")
    assert json.loads(done.out)["num_added_parameters"] > 0


def test_text_without_badly_cut_words_needs_nothing(
    command: Command, trained_run: Path, domain_file: Path, tmp_path: Path
) -> None:
    words = ["tokenizer", "advise", trained_run, domain_file, "--min-count", 1000]
    done = command(*words)
    assert done.code == 0, done
    assert "no word occurs 1,000 times in 3 pieces or more: the vocabulary fits" in done.out
    command(*words, "--out", tmp_path / "out").assert_refused("no word to add", "lower --min-count")
    assert not (tmp_path / "out").exists()


def test_a_word_level_tokenizer_is_told_to_have_nothing_to_add(
    command: Command, corpus_file: Path, domain_file: Path, tmp_path: Path
) -> None:
    command("tokenizer", "train", corpus_file, "--type", "word_level", "--out", tmp_path / "words")
    done = command("tokenizer", "advise", tmp_path / "words", domain_file)
    assert done.code == 0, done
    assert "a word-level tokenizer never cuts a word" in done.out


def test_bad_input_is_one_line(command: Command, trained_run: Path, domain_file: Path, tmp_path: Path) -> None:
    command("tokenizer", "advise", tmp_path / "absent", domain_file).assert_refused("absent")
    command("tokenizer", "advise", trained_run, tmp_path / "absent.txt").assert_refused("absent.txt")
    (tmp_path / "one.txt").write_text("a single text\n")
    command("tokenizer", "advise", trained_run, tmp_path / "one.txt").assert_refused("give more texts")
    command("tokenizer", "advise", trained_run, domain_file, "--min-count", 0).assert_refused("--min-count")


def test_the_limits_are_those_of_the_library() -> None:
    options = inspect.signature(advise).parameters
    assert options["max_tokens"].default == DEFAULT_MAX_TOKENS
    assert options["min_count"].default == DEFAULT_MIN_COUNT
