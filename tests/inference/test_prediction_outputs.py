"""Answers in files: what is read back, and that a file is whole or absent."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from rich.console import Console

from maskwright.errors import InputError
from maskwright.inference.kept_answers import keep_answers
from maskwright.inference.outputs import AnswerColumns, check_output
from maskwright.runs import progress
from maskwright.runs.progress import show_progress

SUFFIXES = [".jsonl", ".parquet", ".npz"]


def build_records(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{"text": f"tëxt {number}", "embedding": random.random(4, np.float32)} for number in range(count)]


def write(path: Path, records: Any, example: Any = None) -> None:
    with keep_answers(path, AnswerColumns(answers=example or build_records(1)[0])) as kept:
        for record in records:
            kept.write(record)
        kept.finish()


@pytest.mark.parametrize("count", [1, 2_500])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_vectors_are_read_back_in_order(tmp_path: Path, suffix: str, count: int) -> None:
    path, records = tmp_path / f"out{suffix}", build_records(count)
    write(path, records)
    expected = np.stack([record["embedding"] for record in records])
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            assert sorted(arrays) == ["embeddings", "missing"]
            assert not arrays["missing"].any()
            found = arrays["embeddings"]
    else:
        rows = (
            pyarrow.parquet.read_table(path).to_pylist()
            if suffix == ".parquet"
            else [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        )
        assert [row["text"] for row in rows] == [record["text"] for record in records]
        found = np.array([row["embedding"] for row in rows], np.float32)
    assert np.array_equal(found, expected)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_no_record_is_a_whole_file(tmp_path: Path) -> None:
    write(tmp_path / "out.parquet", [])
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows == 0


def test_vectors_in_parquet_have_four_bytes_a_number(tmp_path: Path) -> None:
    write(tmp_path / "out.parquet", build_records(3))
    kind = pyarrow.parquet.read_schema(tmp_path / "out.parquet").field("embedding").type
    assert kind.value_type == pyarrow.float32()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_vectors_of_tokens_are_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    vectors = [np.arange(2 * length, dtype=np.float32).reshape(length, 2) for length in (3, 1, 4)]
    records = [{"text": "a", "embedding": one} for one in vectors]
    write(path, records, records[0])
    if suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            found = np.split(arrays["embeddings"], np.cumsum(arrays["lengths"])[:-1])
    elif suffix == ".parquet":
        found = [np.array(row["embedding"]) for row in pyarrow.parquet.read_table(path).to_pylist()]
    else:
        found = [np.array(json.loads(line)["embedding"]) for line in path.read_text().splitlines()]
    assert [part.tolist() for part in found] == [part.tolist() for part in vectors]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failure_leaves_no_file_and_what_was_there(
    tmp_path: Path, suffix: str, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_late() -> Iterator[dict[str, Any]]:
        yield from build_records(1_500)
        raise InputError("the last text is bad")

    for path in (tmp_path / f"new{suffix}", tmp_path / f"old{suffix}"):
        if path.stem == "old":
            path.write_text("what was there")
        with pytest.raises(InputError, match="the last text is bad"):
            write(path, fail_late())
    assert [file.name for file in tmp_path.iterdir()] == [f"old{suffix}"]
    assert (tmp_path / f"old{suffix}").read_text() == "what was there"
    assert not list(recwarn)
    assert capsys.readouterr().err == ""


def test_outputs_that_cannot_be_are_refused_beforehand(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.write_text("")
    check_output(tmp_path / "new.jsonl", overwrite=False, has_vectors=False)
    check_output(there, overwrite=True, has_vectors=False)
    for path, reason in [
        (there, r"exists; choose another --out \(out= in Python\), or add --overwrite \(overwrite=True in Python\)"),
        (tmp_path / "out.csv", r"the suffix '\.csv'; known are \.jsonl, \.parquet, \.npz"),
        (tmp_path / "out.npz", "these answers are none"),
        (tmp_path / "absent" / "out.jsonl", "does not exist"),
    ]:
        with pytest.raises(InputError, match=reason):
            check_output(path, overwrite=False, has_vectors=False)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_counts_what_passes_through(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_PLAIN_INTERVAL_S", 0.0)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=100)
    assert list(show_progress(range(1_200), console, "text")) == list(range(1_200))
    assert "1,200 texts in" in stream.getvalue()
    assert ("1,199 texts in" in stream.getvalue()) is not is_terminal
