from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maskwright.text.tokenizer.tokenizer import load_tokenizer

Command = Callable[..., Any]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level_bpe", "unigram", "word_level"])
def test_each_kind_is_trained_and_shown(command: Command, corpus_file: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "new" / "tokenizer"
    done = command("tokenizer", "train", corpus_file, "--type", kind, "--vocab-size", 280, "--out", out)
    assert done.code == 0, done
    assert kind in done.out
    shown = command("tokenizer", "show", out, "the cat", "--json")
    assert shown.code == 0, shown
    described = json.loads(shown.out)
    assert described["vocab_size"] == load_tokenizer(out).vocab_size <= 280
    assert list(described["special_tokens"].items())[:5] == [
        ("[PAD]", 0),
        ("[UNK]", 1),
        ("[CLS]", 2),
        ("[SEP]", 3),
        ("[MASK]", 4),
    ]
    assert described["tokens_per_word"] == len(described["tokens"]) / 2


def test_options_reach_the_tokenizer(command: Command, tmp_path: Path) -> None:
    sources = [tmp_path / "a.txt", tmp_path / "b.txt"]
    sources[0].write_text("Paris Paris London\n")
    sources[1].write_text("Paris Rome rome\n")
    words = [
        "--type",
        "word_level",
        "--cased",
        "--min-frequency",
        3,
        "--special-token",
        "[A]",
        "--special-token",
        "[B]",
    ]
    done = command("tokenizer", "train", *sources, *words, "--out", tmp_path / "out")
    assert "the text has no more to learn: 30,522 were asked for" in done.out
    tokenizer = load_tokenizer(tmp_path / "out")
    assert [tokenizer.token(token_id) for token_id in range(5, tokenizer.vocab_size)] == ["[A]", "[B]", "Paris"]


def test_words_are_learnt_from_a_sample_and_from_the_most_frequent(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("".join(f"Paris Rome word{number}\n" for number in range(200)))
    words = ["tokenizer", "train", source, "--type", "word_level", "--cased", "--min-frequency", 1]
    sizes = {}
    for name, options in {"all": [], "half": ["--sample", 0.5], "two": ["--max-words", 2]}.items():
        done = command(*words, *options, "--out", tmp_path / name)
        assert done.code == 0, done
        sizes[name] = load_tokenizer(tmp_path / name).vocab_size - 5
    assert "202 different words; learning from the 2 that occur 200 times or more" in done.out
    assert sizes["two"] == 2
    assert 50 < sizes["half"] < 150 < sizes["all"] == 202


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--sample", 0], "the sample is 0 of the documents; give a share above 0 and up to 1"),
        (["--seed", -1], "the seed of the sample is -1"),
        (["--workers", 2], "--workers is for --on processes"),
        (["--max-words", 5, "--type", "unigram"], "unigram learns from whole texts"),
        (["--on", "spark"], "'spark' does no tasks"),
    ],
)
def test_ways_to_count_that_cannot_be_are_one_line(
    command: Command, corpus_file: Path, tmp_path: Path, options: list[object], complaint: str
) -> None:
    done = command("tokenizer", "train", corpus_file, *options, "--out", tmp_path / "out")
    done.assert_refused(complaint)
    assert not (tmp_path / "out").exists()


def test_the_text_is_shown_with_tokens_ids_and_places(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    command("tokenizer", "train", corpus_file, "--type", "word_level", "--out", tmp_path / "out")
    shown = command("tokenizer", "show", tmp_path / "out", "The [MASK] sees")
    lines = [line.strip() for line in shown.out.splitlines()]
    assert lines[0].startswith("kind  WordLevel, ")
    assert "mask  [MASK] 4" in lines
    assert "4  [MASK]  4-10" in lines
    assert "normalizer  Lowercase()" in lines
    assert lines[-1] == "tokens per word  1.00"


def test_a_text_of_blanks_has_no_tokens_per_word(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    command("tokenizer", "train", corpus_file, "--out", tmp_path / "out")
    shown = command("tokenizer", "show", tmp_path / "out", " ", "--json")
    assert json.loads(shown.out)["tokens_per_word"] is None


def test_the_tokenizer_of_a_run_is_shown(command: Command, trained_run: Path) -> None:
    assert "WordPiece, " in command("tokenizer", "show", trained_run).out


def test_an_added_token_is_pointed_out(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    command("tokenizer", "train", corpus_file, "--out", tmp_path / "out")
    file = tmp_path / "out" / "tokenizer.json"
    file.write_text(file.read_text().replace("[MASK]", "[OTHER]"))
    (tmp_path / "out" / "tokenizer_config.json").unlink()
    (tmp_path / "out" / "special_tokens_map.json").unlink()
    assert "(added: not in the tokenizer's files)" in command("tokenizer", "show", tmp_path / "out").out


def test_an_existing_tokenizer_is_replaced_only_when_asked(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    words = ["tokenizer", "train", corpus_file, "--out", tmp_path / "out", "--vocab-size"]
    command(*words, 100)
    command(*words, 120).assert_refused("holds a tokenizer", "--overwrite")
    assert load_tokenizer(tmp_path / "out").vocab_size == 100
    assert command(*words, 120, "--overwrite").code == 0
    assert load_tokenizer(tmp_path / "out").vocab_size == 120


def test_a_folder_with_other_files_is_never_replaced(command: Command, corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    words = ["tokenizer", "train", corpus_file, "--out", tmp_path, "--overwrite"]
    command(*words).assert_refused("holds other files, such as thesis.doc")
    assert (tmp_path / "thesis.doc").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--type", "bytepair"], "no tokenizer type 'bytepair'"),
        (["--vocab-size", 4], "vocab_size is 4; it must exceed the 5 special tokens"),
        (["--type", "byte_level_bpe", "--vocab-size", 100], "the 256 bytes and the special tokens take 261"),
        (["--type", "unigram", "--min-frequency", 3], "--min-frequency has no meaning for unigram"),
        (["--min-frequency", 0], "min-frequency"),
        (["--special-token", "[CLS]"], "special token '[CLS]'"),
    ],
)
def test_impossible_settings_are_refused(
    command: Command, corpus_file: Path, tmp_path: Path, words: list[object], message: str
) -> None:
    command("tokenizer", "train", corpus_file, "--out", tmp_path / "out", *words).assert_refused(message)
    assert not (tmp_path / "out").exists()


def test_missing_text_is_refused(command: Command, tmp_path: Path) -> None:
    command("tokenizer", "train", tmp_path / "absent.txt", "--out", tmp_path / "out").assert_refused("absent.txt")


def test_a_file_as_output_is_refused(command: Command, corpus_file: Path) -> None:
    command("tokenizer", "train", corpus_file, "--out", corpus_file).assert_refused("is a file; give a folder")


def test_a_missing_or_broken_tokenizer_is_refused(command: Command, tmp_path: Path) -> None:
    command("tokenizer", "show", tmp_path / "absent").assert_refused("absent")
    (tmp_path / "tokenizer.json").write_text("{")
    command("tokenizer", "show", tmp_path).assert_refused("tokenizer.json is not a tokenizer.json")
