from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from maskwright.inference.pipeline import pipeline
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=1, width=32, length=32)

Command = Callable[..., Any]
TEXTS = ["the cat [MASK] the green house.", "my [MASK] teacher likes a [MASK] road.", "[MASK]"]


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def give_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_texts_on_the_command_line_are_answered_as_by_the_pipeline(command: Command, trained_run: Path) -> None:
    result = command("predict", "fill-mask", trained_run, *TEXTS, "--top-k", 3)
    assert (result.code, result.err) == (0, "")
    answers = pipeline("fill-mask", trained_run, top_k=3)(TEXTS)
    expected = [answer if isinstance(answer[0], list) else [answer] for answer in answers]
    records = read_lines(result.out)
    assert [record["text"] for record in records] == TEXTS
    assert [len(record["candidates"]) for record in records] == [1, 2, 1]
    assert [record["candidates"] for record in records] == expected


def test_a_text_in_another_encoding_is_refused(command: Command, trained_run: Path) -> None:
    result = command("predict", "embed", trained_run, "caf\udce9 au lait")
    assert result.code == 2
    assert "is not UTF-8; convert it" in result.err


def test_targets_are_ranked_and_a_piece_of_one_is_said(command: Command, trained_run: Path) -> None:
    words = ("--target", "the", "--target", "catcat")
    result = command("predict", "fill-mask", trained_run, TEXTS[0], *words)
    assert result.code == 0
    assert result.err.startswith("warning: the target 'catcat' is no single token of the model; its first piece")
    assert len(read_lines(result.out)[0]["candidates"][0]) == 2


@pytest.mark.parametrize("words", [(), ("-",)])
def test_standard_input_is_read_line_by_line(
    command: Command, trained_run: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    give_stdin(monkeypatch, b"the cat\n\nthe quiet river\n")
    result = command("predict", "embed", trained_run, *words)
    records = read_lines(result.out)
    assert [(record["row"], record["text"]) for record in records] == [(0, "the cat"), (1, ""), (2, "the quiet river")]
    assert [record["embedding"] is None for record in records] == [False, True, False]
    assert "3 texts in" in result.err
    assert "warning: -: 1 of 3 texts have no text; their answer is null\n" in result.err


def test_standard_input_without_text_is_refused(
    command: Command, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"\n")
    command("predict", "embed", trained_run, "-").assert_refused("standard input holds no text")


def test_a_file_becomes_a_file_of_vectors_in_its_order(
    command: Command, trained_run: Path, corpus_file: Path, sentences: list[str], tmp_path: Path
) -> None:
    expected = np.stack(pipeline("embed", trained_run)(sentences))
    for name in ("out.npz", "out.parquet", "out.jsonl"):
        result = command("predict", "embed", trained_run, corpus_file, "--out", tmp_path / name)
        assert (result.code, result.out) == (0, "")
        assert "60 texts in" in result.err
    with np.load(tmp_path / "out.npz") as arrays:
        assert_rounded(arrays["embeddings"], expected, NUM_TERMS)
    for rows in (
        pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist(),
        read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8")),
    ):
        assert [row["text"] for row in rows] == sentences
        assert_rounded([row["embedding"] for row in rows], expected, NUM_TERMS)


def test_a_column_is_chosen_and_a_missing_one_is_named(command: Command, trained_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "articles.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in ("the cat", "a bird")), encoding="utf-8")
    result = command("predict", "embed", trained_run, file, "--column", "body", "--pooling", "cls", "--normalize")
    vectors = np.array([record["embedding"] for record in read_lines(result.out)])
    assert_rounded(np.linalg.norm(vectors, axis=1), np.ones(len(vectors)), NUM_TERMS)
    refusal = command("predict", "embed", trained_run, file, "--out", tmp_path / "out.npz")
    refusal.assert_refused(str(file), "has no column 'text'", "'body'")
    assert not (tmp_path / "out.npz").exists()


def test_embed_is_short_for_predict_embed(command: Command, trained_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "articles.jsonl"
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in ("the cat", "a bird")), encoding="utf-8")
    words = (trained_run, file, "--column", "body", "--pooling", "cls", "--normalize", "--keep-columns")
    long, short = (command(*verb, *words) for verb in (("predict", "embed"), ("embed",)))
    assert (short.code, short.out) == (0, long.out)
    assert len(read_lines(short.out)) == 2
    command("embed", trained_run, file, "--out", tmp_path / "out.txt").assert_refused("out.txt", ".npz")


def test_two_texts_and_pairs_in_a_file_are_compared(command: Command, trained_run: Path, tmp_path: Path) -> None:
    pairs = [("the cat", "a small dog"), ("one red bird", "one red bird")]
    (single,) = read_lines(command("predict", "similarity", trained_run, *pairs[0]).out)
    assert set(single) == {"row", "first", "second", "score"}
    table = pyarrow.table({"sentence1": [pair[0] for pair in pairs], "b": [pair[1] for pair in pairs]})
    pyarrow.parquet.write_table(table, tmp_path / "pairs.parquet")
    result = command("predict", "similarity", trained_run, tmp_path / "pairs.parquet", "--second-column", "b")
    records = read_lines(result.out)
    assert [(record["first"], record["second"]) for record in records] == pairs
    assert records[0]["score"] == pytest.approx(single["score"], abs=rounding(NUM_TERMS))
    assert records[1]["score"] == pytest.approx(1.0, abs=rounding(NUM_TERMS))
    assert "2 pairs in" in result.err


def test_a_text_without_a_mask_has_no_answer_in_a_file_and_one_alone_is_named(
    command: Command, trained_run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("the [MASK]\nthe cat sees\n", encoding="utf-8")
    result = command("predict", "fill-mask", trained_run, file, "--out", tmp_path / "out.jsonl")
    assert (result.code, "1 of 2 texts have no text or no [MASK]; their answer is null" in result.err) == (0, True)
    filled, nothing = read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert len(filled["candidates"][0]) == 5
    assert nothing == {"row": 1, "text": "the cat sees", "candidates": None}
    alone = command("predict", "fill-mask", trained_run, "the cat sees", "--out", tmp_path / "alone.jsonl")
    alone.assert_refused("text 1 ('the cat sees') has no [MASK] to fill")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "texts.txt"]


def test_a_file_that_is_there_stays_unless_it_may_be_replaced(
    command: Command, trained_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("what was there")
    command("predict", "embed", trained_run, "a", "--out", out).assert_refused(str(out), "exists", "--overwrite")
    assert out.read_text() == "what was there"
    assert command("predict", "embed", trained_run, "a", "--out", out, "--overwrite").code == 0
    assert read_lines(out.read_text())[0]["text"] == "a"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("embed", "{run}", ""), "text 1 is empty"),
        (("embed", "{run}", "absent.txt"), "no file, folder or glob match at absent.txt"),
        (("embed", "{run}", "a", "--top-k", "3"), "embed has no option 'top_k'"),
        (("embed", "{run}", "a", "--column", "b"), "--column and --second-column are for files"),
        (("embed", "{run}", "a", "--batch-tokens", "0"), "batch_tokens is 0"),
        (("fill-mask", "{run}", "[MASK]", "--out", "out.npz"), "these answers are none"),
        (("fill-mask", "{run}", "[MASK]", "--top-k", "0"), "top_k is 0"),
        (("similarity", "{run}", "a"), "1 texts are given; expected two to compare"),
        (("similarity", "{run}", "-"), "pairs are not read from standard input"),
        (("similarity", "{run}", "a", "b", "--normalize"), "similarity has no option 'normalize'"),
        (("translate", "{run}", "a"), "no kind 'translate' of prediction"),
        (("embed", "./absent", "a"), "no model folder at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_answered_is_refused(
    command: Command, trained_run: Path, words: tuple[str, ...], reason: str
) -> None:
    command("predict", *(word.replace("{run}", str(trained_run)) for word in words)).assert_refused(reason)


def test_a_column_for_pairs_is_refused_where_there_are_none(
    command: Command, trained_run: Path, corpus_file: Path
) -> None:
    words = ("--second-column", "b")
    command("predict", "embed", trained_run, corpus_file, *words).assert_refused("--second-column is for pairs")


def test_a_text_longer_than_any_file_name_is_a_text(command: Command, trained_run: Path) -> None:
    result = command("predict", "embed", trained_run, "the quiet river " * 200)
    assert (result.code, len(read_lines(result.out))) == (0, 1)


def test_names_of_transformers_are_understood(command: Command, trained_run: Path, tmp_path: Path) -> None:
    ours = command("predict", "embed", trained_run, "the cat", "--pooling", "none")
    theirs = command("predict", "feature-extraction", trained_run, "the cat")
    assert (theirs.code, theirs.out) == (0, ours.out)
    result = command("predict", "feature-extraction", trained_run, "the cat", "--out", tmp_path / "vectors.npz")
    assert result.code == 0, result
    command("predict", "token-classification", trained_run, "the cat").assert_refused("expected a model fine-tuned")
    command("predict", "summarization", trained_run, "the cat").assert_refused("a pipeline writes no text")
    command("predict", "ner", trained_run, "a", "--aggregation-strategy", "x").assert_refused("fine-tuned")


def test_either_spelling_of_the_mask_is_filled(command: Command, trained_run: Path) -> None:
    for verb in (["fill"], ["predict", "fill-mask"]):
        own = command(*verb, trained_run, "the [MASK] sees", "--top-k", 2)
        other = command(*verb, trained_run, "the <mask> sees", "--top-k", 2)
        assert (other.code, other.out.replace("<mask>", "[MASK]")) == (0, own.out)
