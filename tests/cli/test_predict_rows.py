"""Answers that can be joined with what they were read from: row numbers, ids and columns, from every source."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import maskwright as mw
from maskwright.errors import InputError, InputWarning

Command = Callable[..., Any]
TEXTS = ["the cat", "", "a bird", "the quiet river"]
RECORDS = [{"uid": f"u{number}", "text": text, "score": number / 2} for number, text in enumerate(TEXTS)]


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def write_source(folder: Path, suffix: str) -> Path:
    """The four rows in a file of a format."""
    path = folder / f"source{suffix}"
    lines = "".join(f"{text}\n" for text in TEXTS)
    objects = "".join(json.dumps(record) + "\n" for record in RECORDS)
    rows = [list(RECORDS[0]), *(list(record.values()) for record in RECORDS)]
    if suffix == ".txt":
        path.write_text(lines)
    elif suffix == ".txt.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif suffix == ".jsonl":
        path.write_text(objects)
    elif suffix == ".jsonl.bz2":
        path.write_bytes(bz2.compress(objects.encode()))
    elif suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    elif suffix == ".tsv":
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".jsonl.bz2", ".csv", ".tsv", ".parquet"])
def test_every_row_of_a_file_has_its_answer_and_number(
    command: Command, trained_run: Path, tmp_path: Path, suffix: str
) -> None:
    source = write_source(tmp_path, suffix)
    result = command("predict", "embed", trained_run, source)
    assert result.code == 0, result
    records = read_lines(result.out)
    assert [(record["row"], record["text"]) for record in records] == list(enumerate(TEXTS))
    assert [record["embedding"] is None for record in records] == [False, True, False, False]
    assert "file" not in records[0]
    assert "1 of 4 texts have no text; their answer is null" in result.err
    if suffix.startswith(".txt"):
        command("predict", "embed", trained_run, source, "--keep-columns").assert_refused("has no columns")
        return
    result = command("predict", "embed", trained_run, source, "--id-column", "uid", "--keep-columns", "score")
    records = read_lines(result.out)
    assert [list(record) for record in records] == [["uid", "score", "text", "embedding"]] * 4
    assert [(record["uid"], float(record["score"])) for record in records] == [
        (record["uid"], record["score"]) for record in RECORDS
    ]


@pytest.mark.parametrize("as_glob", [False, True])
def test_rows_of_several_files_count_on_and_name_their_file(
    command: Command, trained_run: Path, tmp_path: Path, as_glob: bool
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for suffix in (".txt", ".jsonl", ".parquet"):
        write_source(folder, suffix)
    source = f"{folder}/*" if as_glob else folder
    (tmp_path / "glob").mkdir()
    records = mw.predict("embed", trained_run, Path(source), write=(seen := []).append, console=quiet())
    assert records is None
    names = [str(folder / f"source{suffix}") for suffix in (".jsonl", ".parquet", ".txt")]
    assert [record["row"] for record in seen] == list(range(12))
    assert [record["file"] for record in seen] == [name for name in names for _ in TEXTS]
    assert [record["text"] for record in seen] == TEXTS * 3


def quiet() -> Any:
    from rich.console import Console

    return Console(quiet=True)


def test_a_saved_dataset_and_what_is_in_memory(trained_run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    saved = datasets.Dataset.from_list(RECORDS)
    saved.save_to_disk(tmp_path / "saved")
    for texts in (str(tmp_path / "saved"), f"hf:{tmp_path / 'saved'}", saved, pandas.DataFrame(RECORDS), RECORDS):
        seen: list[dict[str, Any]] = []
        with pytest.warns(InputWarning, match="1 of 4 texts have no text; their answer is null"):
            mw.predict("embed", trained_run, texts, keep_columns=True, write=seen.append, console=quiet())
        assert [record["row"] for record in seen] == [0, 1, 2, 3]
        assert [(record["uid"], record["score"], record["text"]) for record in seen] == [
            tuple(record[name] for name in ("uid", "score", "text")) for record in RECORDS
        ]
    seen = []
    with pytest.warns(InputWarning, match="1 of 4"):
        mw.predict("embed", trained_run, TEXTS, write=seen.append)
    assert [(record["row"], record["text"]) for record in seen] == list(enumerate(TEXTS))
    with pytest.raises(InputError, match="--id-column and --keep-columns are for files of records"):
        mw.predict("embed", trained_run, TEXTS, keep_columns=True)


def test_a_column_named_id_is_the_id(command: Command, trained_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(
        "".join(json.dumps({"id": 10 - number, "text": text}) + "\n" for number, text in enumerate(TEXTS))
    )
    records = read_lines(command("predict", "embed", trained_run, source).out)
    assert [list(record) for record in records] == [["id", "text", "embedding"]] * 4
    assert [record["id"] for record in records] == [10, 9, 8, 7]
    assert command("predict", "embed", trained_run, source, "--out", tmp_path / "out.npz").code == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert arrays["ids"].tolist() == [10, 9, 8, 7]


def test_a_broken_record_keeps_its_place(command: Command, trained_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text(
        '{"text": "the cat", "n": 1}\n{"text": "a bi\n{"text": 3, "n": 3}\n["x"]\n\n{"text": "a dog", "n": 4}\n'
    )
    result = command("predict", "embed", trained_run, source, "--keep-columns", "n")
    records = read_lines(result.out)
    assert [(record["row"], record["n"], record["text"]) for record in records] == [
        (0, 1, "the cat"),
        (1, None, None),
        (2, 3, None),
        (3, None, None),
        (4, 4, "a dog"),
    ]
    assert [record["embedding"] is None for record in records] == [False, True, True, True, False]
    assert "3 broken records were skipped" in result.err
    table = tmp_path / "a.csv"
    table.write_text("n,text\n1,the cat\n2\n3,a dog\n")
    records = read_lines(command("predict", "embed", trained_run, table, "--keep-columns").out)
    assert [(record["row"], record.get("n"), record["text"]) for record in records] == [
        (0, "1", "the cat"),
        (1, None, None),
        (2, "3", "a dog"),
    ]


def test_too_many_broken_records_stay_an_error(command: Command, trained_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "the cat"}\n' * 98 + "broken\n" * 2)
    command("predict", "embed", trained_run, source, "--out", tmp_path / "out.jsonl").assert_refused(
        "2 of the first 100 records are broken", f"{source}:99"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_kept_column_never_replaces_a_part_of_the_answer(command: Command, trained_run: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    record = {"row": "r", "text": "other", "embedding": "e", "source_row": "s", "body": "the cat"}
    source.write_text(json.dumps(record) + "\n")
    (found,) = read_lines(command("predict", "embed", trained_run, source, "--column", "body", "--keep-columns").out)
    vector = found.pop("embedding")
    assert len(vector) > 1
    assert found == {
        "row": 0,
        "source_row": "r",
        "source_text": "other",
        "source_embedding": "e",
        "source_source_row": "s",
        "body": "the cat",
        "text": "the cat",
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--keep-columns", "a,c"), "has no column 'c'; it has text, a: name another with --keep-columns"),
        (("--id-column", "uid"), "has no column 'uid'; it has text, a: name another with --id-column"),
        (("--keep-columns", "a,,"), "the columns to keep are 'a,,'"),
        (("--keep-columns", "a", "--out", "out.npz"), "no other columns; with --keep-columns use .jsonl or .parquet"),
    ],
)
def test_columns_that_are_not_there_are_named(
    command: Command, trained_run: Path, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "the cat", "a": 1}\n')
    command("predict", "embed", trained_run, source, *words).assert_refused(reason)


def test_kept_columns_of_parquet_have_the_type_of_their_values(
    command: Command, trained_run: Path, tmp_path: Path
) -> None:
    """Whatever the first thousand rows hold; a column of many types is JSON."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out.parquet"
    rows = [{"text": "a", "n": None, "x": 1, "mixed": number} for number in range(1_000)]
    rows += [{"text": "a", "n": 7, "x": 0.5, "mixed": "seven", "late": ["b"]}, {"text": "a", "mixed": {"k": 1}}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert command("predict", "embed", trained_run, source, "--keep-columns", "--out", out).code == 0
    table = pyarrow.parquet.read_table(out)
    assert {name: str(table.schema.field(name).type) for name in ("row", "n", "x", "mixed", "late", "text")} == {
        "row": "int64",
        "n": "int64",
        "x": "double",
        "mixed": "string",
        "late": "list<element: string>",
        "text": "string",
    }
    last = table.slice(998).to_pylist()
    assert [row["mixed"] for row in last] == ["998", "999", "seven", '{"k": 1}']
    assert [row["n"] for row in last] == [None, None, 7, None]
    assert [row["x"] for row in last] == [1.0, 1.0, 0.5, None]
    assert last[2]["late"] == ["b"]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_times_and_missing_numbers_of_parquet_are_kept(
    command: Command, trained_run: Path, tmp_path: Path, suffix: str
) -> None:
    when = datetime(2026, 1, 31, 12, 0, 0, 5)
    columns = {
        "text": ["a"],
        "when": pyarrow.array([when], pyarrow.timestamp("ns")),
        "x": [float("nan")],
        "raw": [b"\xff"],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    out = tmp_path / f"out{suffix}"
    result = command("predict", "embed", trained_run, tmp_path / "a.parquet", "--keep-columns", "--out", out)
    assert result.code == 0, result
    if suffix == ".jsonl":
        (row,) = read_lines(out.read_text())
        assert (row["when"], row["x"], row["raw"]) == ("2026-01-31T12:00:00.000005", None, "/w==")
    else:
        (row,) = pyarrow.parquet.read_table(out).to_pylist()
        assert (row["when"], row["raw"]) == (when, b"\xff")


def test_lines_of_standard_input_keep_their_numbers(
    command: Command, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n\n  \na bird\n")))
    assert command("predict", "embed", trained_run, "-", "--out", tmp_path / "out.jsonl").code == 0
    records = read_lines((tmp_path / "out.jsonl").read_text())
    assert [record["row"] for record in records] == [0, 1, 2, 3]
    assert [record["embedding"] is None for record in records] == [False, True, True, False]
