"""Sources with a second column: records to pairs of texts, and their cleaning."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from maskwright.errors import InputError
from maskwright.sections.data import QualityConfig, SourceConfig, build_sources, hold_pairs
from maskwright.text.corpus import ReadingReport
from maskwright.text.quality import PairCleaner, TextPair, list_texts
from maskwright.text.sources import read_pairs, read_source, read_sources

COLUMNS = ["id", "b", "a"]
PAIRS = [TextPair("it rains", "it is wet"), TextPair("Zażółć 漢字 🙂", 'said "so", and left'), TextPair("one", "two")]
Rows = list[list[Any]]


def as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in rows).encode()


def as_csv(rows: Rows, **dialect: Any) -> bytes:
    file = io.StringIO()
    csv.writer(file, **dialect).writerows([COLUMNS, *rows])
    return file.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))), file)
    return file.getvalue()


ENCODE: dict[str, Callable[[Rows], bytes]] = {
    "jsonl": as_jsonl,
    "csv": as_csv,
    "tsv": lambda rows: as_csv(rows, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None),
    "parquet": as_parquet,
}


def write(folder: Path, kind: str, rows: Rows) -> dict[str, Any]:
    path = folder / f"pairs.{kind}"
    path.write_bytes(ENCODE[kind](rows))
    return {"path": str(path), "column": "a", "second_column": "b"}


def as_rows(pairs: list[TextPair]) -> Rows:
    return [[number, pair.second, f" {pair.first} "] for number, pair in enumerate(pairs)]


@pytest.mark.parametrize("kind", ENCODE)
def test_two_columns_are_read_as_pairs_in_the_order_asked_for(tmp_path: Path, kind: str) -> None:
    report = ReadingReport()
    source = write(tmp_path, kind, as_rows(PAIRS))
    assert list(read_pairs(source, report)) == PAIRS
    assert (report.num_documents, report.num_bad_records, report.num_blank) == (3, 0, 0)
    swapped = source | {"column": "b", "second_column": "a"}
    assert list(read_pairs(swapped)) == [TextPair(pair.second, pair.first) for pair in PAIRS]


@pytest.mark.parametrize("kind", ENCODE)
def test_half_a_pair_is_a_broken_record_and_an_empty_one_is_blank(tmp_path: Path, kind: str) -> None:
    rows = [*as_rows(PAIRS), [3, "  ", "no second"], [4, "no first", ""], [5, " ", ""]]
    report = ReadingReport()
    source = write(tmp_path, kind, rows)
    assert list(read_pairs(source, report)) == PAIRS
    assert (report.num_documents, report.num_bad_records, report.num_blank) == (3, 2, 1)
    assert "'b' is blank" in report.bad_records[0]
    assert "'a' is blank" in report.bad_records[1]
    assert source["path"] in report.bad_records[0]
    (warning,) = report.warnings("x")
    assert warning.startswith("x: 2 broken records were skipped")


def test_a_missing_second_text_is_a_broken_record(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "one", "b": "two"}\n{"a": "three"}\n{"a": "four", "b": 5}\n')
    report = ReadingReport()
    source = {"path": str(path), "column": "a", "second_column": "b"}
    assert list(read_pairs(source, report)) == [("one", "two")]
    assert report.bad_records == [
        f"{path}:2 'b' is missing, not a string",
        f"{path}:3 'b' holds a int, not a string",
    ]
    rows: Rows = [*as_rows(PAIRS), [3, None, "no second"]]
    assert list(read_pairs(write(tmp_path, "parquet", rows), report)) == PAIRS
    assert report.num_bad_records == 3


@pytest.mark.parametrize("kind", ENCODE)
def test_too_many_half_pairs_are_refused(tmp_path: Path, kind: str) -> None:
    rows: Rows = [[number, "" if number % 10 == 0 else "second", "first"] for number in range(200)]
    source = write(tmp_path, kind, rows)
    with pytest.raises(InputError, match=r"20 of the first 200 records are broken, first .* 'b' is blank"):
        list(read_pairs(source))
    assert len(list(read_pairs(source | {"max_bad_share": 0.1}))) == 180


@pytest.mark.parametrize("kind", ENCODE)
def test_a_second_column_that_is_not_there_is_refused_by_its_option(tmp_path: Path, kind: str) -> None:
    source = write(tmp_path, kind, as_rows(PAIRS))
    with pytest.raises(InputError, match=r"no column 'c'; it has 'id', 'b', 'a': choose one with `second_column`"):
        list(read_pairs(source | {"second_column": "c"}))
    with pytest.raises(InputError, match=r"choose one with `column`, as in '\{path: .*, column: NAME\}'"):
        list(read_pairs(source | {"column": "c"}))


def test_a_parquet_column_of_numbers_is_no_second_text(tmp_path: Path) -> None:
    source = write(tmp_path, "parquet", as_rows(PAIRS))
    with pytest.raises(InputError, match=r"column 'id' of .* holds int64; expected strings"):
        list(read_pairs(source | {"second_column": "id"}))


@pytest.mark.parametrize("name", ["builtin:python", "plain.txt"])
def test_what_has_no_columns_has_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match=r"has no columns, so no second_column 'b'; give pairs as .jsonl"):
        list(read_pairs({"path": name, "second_column": "b"}))


def test_a_dataset_of_the_hub_gives_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("datasets")
    rows = [{"a": "one", "b": "two \ud800", "label": 1}, {"a": "three", "b": None}]
    module.load_dataset = lambda *arguments, **options: iter(rows)
    monkeypatch.setitem(sys.modules, "datasets", module)
    report = ReadingReport()
    source = {"path": "hf:org/nli", "column": "a", "second_column": "b"}
    assert list(read_pairs(source, report)) == [("one", "two \ufffd")]
    assert report.bad_records == ["hf:org/nli:2 'b' holds a NoneType, not a string"]
    assert report.num_invalid_lines == 1


def test_half_of_a_surrogate_pair_is_replaced_in_either_text(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "one", "b": "two \\ud800"}\n{"a": "\\udc00 three", "b": "four"}\n')
    report = ReadingReport()
    pairs = list(read_pairs({"path": str(path), "column": "a", "second_column": "b"}, report))
    assert pairs == [("one", "two \ufffd"), ("\ufffd three", "four")]
    assert report.num_invalid_lines == 2


def test_a_tokenizer_is_given_both_texts(tmp_path: Path) -> None:
    source = write(tmp_path, "csv", as_rows(PAIRS))
    texts = ["it rains", "it is wet", *PAIRS[1], "one", "two"]
    assert list(read_source(source)) == list(read_sources([source])) == list_texts(PAIRS) == texts


def test_pairs_of_a_source_without_a_second_column_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", as_rows(PAIRS))["path"]
    with pytest.raises(InputError, match="read as pairs of texts; name the second one's column"):
        next(read_pairs({"path": path, "column": "a"}))


def test_all_sources_hold_pairs_or_none() -> None:
    pair, single = SourceConfig(path="a.csv", second_column="b"), SourceConfig(path="b.csv", column="b")
    assert hold_pairs([pair, pair])
    assert not hold_pairs([single, single])
    with pytest.raises(InputError, match=r"a\.csv has a second_column and b\.csv has none; .* or none"):
        hold_pairs([single, pair])


def test_one_column_cannot_be_both() -> None:
    with pytest.raises(InputError, match="column and second_column are both 'text'; name two columns"):
        build_sources({"path": "a.csv", "second_column": "text"})


def clean(pairs: list[tuple[str, str]], **settings: Any) -> tuple[list[TextPair], PairCleaner]:
    cleaner = PairCleaner(QualityConfig(**settings))
    return list(cleaner.clean([TextPair(*pair) for pair in pairs])), cleaner


def test_a_pair_is_dropped_when_either_text_is_and_counted_once() -> None:
    pairs = [("long enough", "this too"), ("no", "long enough"), ("long enough", "no"), ("no", "no")]
    kept, cleaner = clean(pairs, min_chars=4)
    assert kept == pairs[:1]
    report = cleaner.report
    assert (report.num_seen, report.num_kept, dict(report.dropped)) == (4, 1, {"under 4 characters": 3})


def test_both_texts_are_cleaned_and_the_pair_counts_as_one_changed() -> None:
    kept, cleaner = clean([("a\x01b", "ﬁne"), ("as it", "was")], remove_control=True, unicode="nfkc")
    assert kept == [("ab", "fine"), ("as it", "was")]
    assert cleaner.report.num_changed == 1


def test_duplicates_are_equal_pairs_not_equal_texts() -> None:
    pairs = [("premise", "one"), ("premise", "two"), ("one", "premise"), ("premise", "one"), ("a b", "c"), ("a", "b c")]
    kept, cleaner = clean(pairs, drop_duplicates=True)
    assert kept == [*pairs[:3], *pairs[4:]]
    assert dict(cleaner.report.dropped) == {"duplicate": 1}


def test_nearly_equal_pairs_are_dropped() -> None:
    first = " ".join(f"word{number}" for number in range(60))
    second = " ".join(f"other{number}" for number in range(60))
    kept, cleaner = clean([(first, second), (first, f"{second} end"), (second, "new")], drop_near_duplicates=True)
    assert [pair.second for pair in kept] == [second, "new"]
    assert dict(cleaner.report.dropped) == {"near duplicate": 1}
