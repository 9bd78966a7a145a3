from __future__ import annotations

import bz2
import csv
import glob
import gzip
import io
import json
import lzma
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from maskwright.errors import InputError
from maskwright.sections.data import SourceConfig, build_sources
from maskwright.text import records, sentences, streams
from maskwright.text import sources as sources_module
from maskwright.text.corpus import ReadingReport
from maskwright.text.files import hash_file
from maskwright.text.sources import fingerprint, list_files, read_pairs, read_source, read_sources

SHARED_TEXT = Path(__file__).parents[2].parent / "shared" / "data" / "text"
DOCUMENTS = ["Plain words.", 'Said "so", and left', "Zażółć gęślą jaźń 漢字 🙂", "two\nlines"]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda raw: pyarrow.compress(raw, codec="zstd", asbytes=True),
}


def as_jsonl(documents: list[str], column: str = "text") -> bytes:
    return "".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(documents)).encode()


def as_csv(documents: list[str]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows([["id", "text"], *enumerate(documents)])
    return file.getvalue().encode()


def as_parquet(documents: list[str | None], row_group_size: int = 2) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"id": list(range(len(documents))), "text": documents})
    parquet.write_table(table, file, row_group_size=row_group_size)
    return file.getvalue()


ENCODE: dict[str, Callable[[list[str]], bytes]] = {
    "txt": lambda documents: "\n\n".join(documents).encode(),
    "jsonl": as_jsonl,
    "ndjson": as_jsonl,
    "csv": as_csv,
    "tsv": lambda documents: "\n".join(["id\ttext", *(f"1\t{text}" for text in documents)]).encode(),
    "parquet": lambda documents: as_parquet([*documents]),
}


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("kind", ENCODE)
def test_every_format_is_read_plain_and_compressed(tmp_path: Path, kind: str, compression: str) -> None:
    documents = DOCUMENTS if kind not in ("txt", "tsv") else DOCUMENTS[:3]
    path = write(tmp_path, f"corpus.{kind}{compression}", COMPRESS[compression](ENCODE[kind](documents)))
    report = ReadingReport()
    assert list(read_source(str(path), report)) == documents
    assert report.num_documents == len(documents)
    assert report.warnings() == []


@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz", ".zst"])
def test_concatenated_compressed_parts_are_one_file(tmp_path: Path, compression: str) -> None:
    compress = COMPRESS[compression]
    path = write(tmp_path, f"a.txt{compression}", compress(b"one\ntw") + compress(b"o\nthree\n"))
    assert list(read_source(path)) == ["one", "two", "three"]


def test_paragraphs_are_documents_when_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"\n\nfirst line\r\n  second line\r\n\r\n \t\r\nnext\n\n\nlast")
    source = {"path": str(path), "documents": "paragraphs"}
    assert list(read_source(source)) == ["first line\n  second line", "next", "last"]
    assert len(list(read_source(path))) == 4


def test_a_line_over_the_limit_is_cut_at_a_space_with_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 2_000_000)
    line = "wörd " * 1_000_000
    documents = list(read_source(write(tmp_path, "a.txt", f"{line}\nend\n".encode())))
    assert len(documents) > 2
    assert documents[-1] == "end"
    assert " ".join(documents[:-1]) == line.strip()
    unbroken = "é" * 3_000_000
    assert "".join(read_source(write(tmp_path, "b.txt", f"x{unbroken}".encode()))) == f"x{unbroken}"
    with pytest.raises(InputError, match=r"c\.jsonl:1 is a line of more than"):
        list(read_source(write(tmp_path, "c.jsonl", as_jsonl([line]))))


@pytest.mark.parametrize("kind", [*ENCODE, "paragraphs"])
def test_a_long_text_is_cut_into_the_same_documents_in_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_CHARS", 1000)
    monkeypatch.setattr(streams, "_CHUNK_BYTES", 1500)
    sentence = "A sentence of 漢字 words, about 3.5 or so, and 🙂 signs. "
    text = (sentence * 100).strip()
    encode = ENCODE["txt" if kind == "paragraphs" else kind]
    suffix = "txt" if kind == "paragraphs" else kind
    path = write(tmp_path, f"a.{suffix}", encode([text, "short", "🙂" * 2500]))
    source = {"path": str(path), "documents": "paragraphs" if kind == "paragraphs" else "lines"}
    report = ReadingReport()
    documents = list(read_source(source, report))
    num_pieces = documents.index("short")
    assert " ".join(documents[:num_pieces]) == text
    assert all(1000 - 2 * len(sentence) < len(piece) <= 1000 for piece in documents[: num_pieces - 1])
    assert all(piece.endswith(" signs.") for piece in documents[:num_pieces])
    assert documents[num_pieces:] == ["short", "🙂" * 1000, "🙂" * 1000, "🙂" * 500]
    assert report.num_documents == len(documents)
    assert report.num_long_lines == 2
    assert "2 texts of more than 1,000 characters were cut" in report.warnings()[0]


def test_a_long_text_without_sentences_is_cut_at_a_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_CHARS", 100)
    text = "".join(f"word{number}\t" for number in range(100)) + " " * 300 + "end"
    pieces = list(sentences.cut_long_text(text))
    assert [*"\t".join(pieces[:-1]).split(), pieces[-1]] == text.split()
    assert max(map(len, pieces)) <= 100
    assert list(sentences.cut_long_text(" short ")) == [" short "]


def test_the_texts_of_a_long_pair_keep_their_beginnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_CHARS", 100)
    rows = [{"text": "first " * 50, "other": "second"}, {"text": "third", "other": "fourth"}]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    pairs = list(read_pairs({"path": str(path), "second_column": "other"}))
    assert pairs == [(("first " * 16).strip(), "second"), ("third", "fourth")]


def test_a_long_parquet_column_is_read_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory at once is bounded by bytes, not by rows alone."""
    monkeypatch.setattr(records, "_BATCH_BYTES", 1 << 20)
    table = pyarrow.table({"text": ["".join(chr(97 + (n * k) % 26) for k in range(26)) * 4_000 for n in range(100)]})
    parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=1)
    list(read_source(tmp_path / "a.parquet"))
    before = pyarrow.default_memory_pool().bytes_allocated()
    most = 0
    for _ in read_source(tmp_path / "a.parquet"):
        most = max(most, pyarrow.default_memory_pool().bytes_allocated() - before)
    assert most < 6 << 20


def test_links_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    for name in ("b/one.txt", "b/c/two.txt", "three.txt"):
        write(folder, name, name.encode())
    outside = write(tmp_path, "outside/four.txt", b"four")
    (folder / "a").symlink_to(folder / "b", target_is_directory=True)
    (folder / "b" / "up").symlink_to(folder, target_is_directory=True)
    (folder / "b" / "up2").symlink_to("..", target_is_directory=True)
    (folder / "out").symlink_to(outside.parent, target_is_directory=True)
    (folder / "0.txt").symlink_to(folder / "three.txt")
    names = ["b/c/two.txt", "b/one.txt", "out/four.txt", "three.txt"]
    for source in (str(folder), f"{folder}/**/*.txt", f"{folder}/**"):
        assert [file.relative_to(folder).as_posix() for file in list_files(source)] == names
    assert [file.name for file in list_files(f"{folder}/*.txt")] == ["three.txt"]
    assert [file.name for file in list_files(f"{folder}/**/c/*.txt")] == ["two.txt"]
    assert [file.name for file in list_files(f"{folder}/*/**/*o*.txt")] == ["two.txt", "one.txt", "four.txt"]
    assert [file.name for file in list_files(folder / "0.txt")] == ["0.txt"]


def test_a_glob_of_any_depth_leaves_hidden_files_alone_as_others_do(tmp_path: Path) -> None:
    for name in ("a/one.txt", ".git/two.txt", "a/.three.txt", "a/.b/four.txt"):
        write(tmp_path, name, b"text")
    for pattern in ("**/*.txt", "a/**/*.txt", "**", "*/*.txt", "**/.b/*.txt", "**/.*.txt", "a/**/one.txt"):
        wanted = [Path(file) for file in glob.glob(f"{tmp_path}/{pattern}", recursive=True) if Path(file).is_file()]
        assert list_files(f"{tmp_path}/{pattern}") == sorted(wanted)


def test_a_folder_is_all_its_readable_files_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b.txt", b"second\n")
    write(tmp_path, "a.jsonl", as_jsonl(["first"]))
    write(tmp_path, "c/deep.csv.gz", gzip.compress(as_csv(["third"])))
    write(tmp_path, "README.md", b"not a document")
    write(tmp_path, ".hidden/x.txt", b"not a document")
    write(tmp_path, "empty.txt", b"")
    assert list(read_source(tmp_path)) == ["first", "second", "third"]
    assert [file.name for file in list_files(tmp_path)] == ["a.jsonl", "b.txt", "deep.csv.gz", "empty.txt"]


def test_a_glob_is_the_files_it_matches(tmp_path: Path) -> None:
    for name in ("b1.txt", "a1.txt", "sub/deeper/c1.txt", "a2.txt", "a1.md"):
        write(tmp_path, name, name.encode())
    assert list(read_source(f"{tmp_path}/*1*")) == ["a1.txt", "b1.txt"]
    assert list(read_source(f"{tmp_path}/**/*1.txt")) == ["a1.txt", "b1.txt", "sub/deeper/c1.txt"]
    assert list(read_source(f"{tmp_path}/[b]1.txt")) == ["b1.txt"]
    with pytest.raises(InputError, match=r"holds no file that can be read; known are .txt, .jsonl"):
        list(read_source(f"{tmp_path}/*.md"))


def test_a_file_name_with_glob_characters_is_that_file(tmp_path: Path) -> None:
    assert list(read_source(write(tmp_path, "a[1].txt", b"this one"))) == ["this one"]


def test_several_sources_follow_one_another(tmp_path: Path) -> None:
    first = write(tmp_path, "a.txt", b"one\n")
    second = write(tmp_path, "b.jsonl", as_jsonl(["two"], column="body"))
    report = ReadingReport()
    sources = [str(first), {"path": str(second), "column": "body", "weight": 3}]
    assert list(read_sources(sources, report)) == ["one", "two"]
    assert report.num_documents == 2


def test_the_builtin_corpus_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources_module, "read_python_documentation", lambda: ["one", "two"])
    assert list(read_source("builtin:python")) == ["one", "two"]
    (entry,) = fingerprint("builtin:python")
    assert (entry["path"], entry["size"]) == ("builtin:python", 7)
    monkeypatch.setattr(sources_module, "read_python_documentation", lambda: ["one", "too"])
    assert fingerprint("builtin:python") != [entry]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ({"path": "a.txt", "wieght": 2}, "unknown configuration key 'wieght'; did you mean 'weight'?"),
        ({"path": "a.txt", "weight": 0}, "configuration key 'weight' is 0: expected a value greater than 0"),
        ({"path": "a.txt", "weight": float("inf")}, "finite number"),
        ({"path": "a.txt", "documents": "pages"}, "expected 'lines' or 'paragraphs'"),
        ({"column": "text"}, "configuration key 'path'"),
        ("", "configuration key 'path' is ''"),
        ([], "no source of text is given"),
    ],
)
def test_a_wrong_description_is_refused_in_one_line(source: Any, complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        build_sources(source)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_description_may_be_a_path_a_mapping_a_config_or_a_list() -> None:
    config = SourceConfig(path="a.txt")
    assert build_sources("a.txt") == build_sources(Path("a.txt")) == build_sources({"path": "a.txt"}) == [config]
    assert build_sources(["a.txt", config]) == [config, config]
    assert config.weight == 1.0


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_a_missing_column_is_answered_with_those_there_are(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, f"a.{kind}", ENCODE[kind](["one", "two"]))
    with pytest.raises(InputError, match=rf"a\.{kind} has no column 'body'; it has 'id', 'text'") as refusal:
        list(read_source({"path": str(path), "column": "body"}))
    assert "\n" not in str(refusal.value)


def test_fingerprints_change_with_a_byte_and_with_a_new_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"one\n")
    before = fingerprint(tmp_path)
    assert before == [{"path": path.as_posix(), "size": 4, "hash": hash_file(path)}]
    path.write_bytes(b"two\n")
    changed = fingerprint(tmp_path)
    assert changed != before
    path.write_bytes(b"one\n")
    assert fingerprint(tmp_path) == before
    write(tmp_path, "b.txt", b"")
    assert len(fingerprint(tmp_path)) == 2


@pytest.fixture
def fake_datasets(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the library, which keeps the arguments it was called with."""
    calls: dict[str, Any] = {}
    module: Any = ModuleType("datasets")
    rows = [{"text": "one", "title": "t"}, {"text": " ", "title": "t"}, {"text": None}, {"text": "two \ud800"}]

    def load_dataset(name: str, config: str | None = None, **options: Any) -> Any:
        calls.update(name=name, config=config, **options)
        if name == "absent":
            raise FileNotFoundError("Dataset 'absent' doesn't exist\non the Hub")
        return iter(rows)

    module.load_dataset = load_dataset
    module.load_from_disk = lambda folder: {"train": [{"text": folder}], "test": [{"text": "held out"}]}
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_a_dataset_of_the_hub_is_streamed(fake_datasets: dict[str, Any]) -> None:
    report = ReadingReport()
    assert list(read_source("hf:org/wiki:20220301.en@train[:1%]", report)) == ["one", "two \ufffd"]
    assert fake_datasets == {"name": "org/wiki", "config": "20220301.en", "split": "train[:1%]", "streaming": True}
    assert (report.num_documents, report.num_blank, report.num_bad_records, report.num_invalid_lines) == (2, 1, 1, 1)
    next(read_source("hf:wiki"))
    assert fake_datasets == {"name": "wiki", "config": None, "split": "train", "streaming": True}


def test_a_dataset_that_cannot_be_read_is_refused_in_one_line(fake_datasets: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"hf:absent cannot be read: FileNotFoundError: .* on the Hub; check"
    ) as refusal:
        list(read_source("hf:absent"))
    assert "\n" not in str(refusal.value)
    with pytest.raises(InputError, match="hf:wiki has no column 'body'; it has 'text', 'title'"):
        list(read_source({"path": "hf:wiki", "column": "body"}))
    with pytest.raises(InputError, match=r"expected hf:NAME\[:CONFIG\]\[@SPLIT\]"):
        list(read_source("hf:"))


@pytest.mark.usefixtures("fake_datasets")
def test_a_saved_dataset_is_read_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "dataset_dict.json", b'{"splits": ["train", "test"]}')
    assert list(read_source(tmp_path)) == list(read_source(f"hf:{tmp_path}")) == [str(tmp_path)]
    assert list(read_source(f"hf:{tmp_path}@test")) == ["held out"]
    assert [Path(entry["path"]).name for entry in fingerprint(tmp_path)] == ["dataset_dict.json"]
    with pytest.raises(InputError, match="has no split 'dev'; it has train, test"):
        list(read_source(f"hf:{tmp_path}@dev"))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"hf:wiki needs the package `datasets`: pip install 'maskwright\[hf\]'"):
        list(read_source("hf:wiki"))


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_jsonl_csv_and_parquet_give_back_the_texts(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    expected = [text.strip() for text in texts if text.strip()]
    folder = tmp_path_factory.mktemp("texts")
    for kind in ("jsonl", "csv", "parquet"):
        path = write(folder, f"a.{kind}", ENCODE[kind]([*texts, "end"]))
        assert list(read_source(path)) == [*expected, "end"]


@pytest.mark.parametrize(
    "kind",
    [
        "txt",
        pytest.param("jsonl.gz", marks=pytest.mark.slow),
        pytest.param("csv.xz", marks=pytest.mark.slow),
        "parquet",
        pytest.param("parquet.zst", marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    added = 15_000
    small, large = (measure_reading(tmp_path, kind, count) for count in (added, 2 * added))
    assert large - small < added * len(LONG_LINE) / 10


LONG_LINE = "some words that make a line of text of sixty-four bytes, almost. " * 10


def measure_reading(folder: Path, kind: str, num_documents: int) -> int:
    """The most bytes that are taken while a file of so many documents is read."""
    name, _, compression = kind.partition(".")
    texts = [LONG_LINE] * num_documents
    content = as_parquet(texts, num_documents) if name == "parquet" else ENCODE[name](texts)
    compress = COMPRESS[f".{compression}" if compression else ""]
    path = write(folder, f"a.{kind}", compress(content))
    del content, texts
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    peak_arrow = 0
    for number, _ in enumerate(read_source(path), start=1):
        if number % 1000 == 0:
            peak_arrow = max(peak_arrow, pyarrow.total_allocated_bytes() - before)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert number == num_documents
    return peak + peak_arrow


@pytest.mark.skipif(not SHARED_TEXT.is_dir(), reason="the development data (../shared) is absent")
def test_real_corpora_are_read_whole() -> None:
    report = ReadingReport()
    documents = list(read_source(SHARED_TEXT / "enwiki10m" / "valid.jsonl.zst", report))
    assert len(documents) == report.num_documents > 100
    assert report.warnings() == []
    names = {path.name for path in list_files(SHARED_TEXT / "multi")}
    assert {"zh_train.jsonl.zst", "ko_valid.jsonl.zst"} <= names
    assert len(list(read_source(SHARED_TEXT / "wikitext-2" / "valid.txt.zst"))) > 1000
