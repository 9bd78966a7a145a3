from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from maskwright.errors import InputError
from maskwright.text import streams
from maskwright.text.corpus import ReadingReport, read_lines
from maskwright.text.sources import read_source

TEXT = "".join(f"line {number} {number * 7919 % 10007} of some text\n" for number in range(100_000)).encode()
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda raw: lzma.compress(raw, preset=0),
    ".zst": lambda raw: pyarrow.compress(raw, codec="zstd", asbytes=True),
}


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refusal_of(path: Path | str, **settings: object) -> str:
    with pytest.raises(InputError) as refusal:
        list(read_source({"path": str(path), **settings}))
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_truncated_file_is_named_with_how_far_it_got(tmp_path: Path, compression: str) -> None:
    compressed = COMPRESS[compression](TEXT)
    path = write(tmp_path, f"a.txt{compression}", compressed[: len(compressed) * 2 // 3])
    report = ReadingReport()
    with pytest.raises(InputError, match=r"is damaged or cut off: .* after [\d,]+ bytes of its content") as refusal:
        list(read_source(path, report))
    assert str(path) in str(refusal.value)
    assert report.num_documents > 10_000
    path.write_bytes(compressed[:-1])
    assert "cut off" in refusal_of(path)
    path.write_bytes(compressed[:3])
    assert "after 0 bytes" in refusal_of(path)


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_file_that_only_claims_to_be_compressed_is_refused(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path, f"a.txt{compression}", b"plain text, whatever the name says\n" * 10)
    assert f"{path} is damaged or cut off" in refusal_of(path)
    with pytest.raises(InputError, match="is damaged"):
        list(read_lines(path))


def zstd_of_one_byte(num_blocks: int, window_log: int = 17) -> bytes:
    """A frame of blocks that each repeat a letter 128 Ki times: 4 bytes that grow 32,768 times."""
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    last = (1 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"a"
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + block * num_blocks + last


@pytest.mark.parametrize(
    ("kind", "compression"),
    [
        pytest.param(kind, name, marks=[] if number == place else [pytest.mark.slow])
        for number, kind in enumerate([".txt", ".jsonl", ".csv", ".parquet"])
        for place, name in enumerate(COMPRESS)
    ],
)
def test_what_grows_too_much_when_decompressed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, compression: str
) -> None:
    monkeypatch.setattr(streams, "FREE_BYTES", 4 << 20)
    num_blocks = 1 << 8  # 32 MiB
    bomb = zstd_of_one_byte(num_blocks) if compression == ".zst" else COMPRESS[compression](b"a" * (num_blocks << 17))
    path = write(tmp_path, f"a{kind}{compression}", bomb)
    message = refusal_of(path)
    assert f"{path} grows more than 500 times when it is decompressed" in message
    made = int(message.split(" refused after ")[1].split(" bytes")[0].replace(",", ""))
    assert streams.FREE_BYTES < made < 24 << 20


def test_a_parquet_file_that_grows_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FREE_BYTES", 4 << 20)
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["many words " * 1000] * 1000}), path)
    assert f"{path} grows more than 500 times" in refusal_of(path)


def test_repetitive_text_may_grow_as_long_as_it_is_small(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt.zst", zstd_of_one_byte(16))
    assert sum(map(len, read_source(path))) == (16 << 17) + 1


def test_decompression_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 512 << 20}]
    for name, content in (
        ("a.txt.zst", zstd_of_one_byte(4, window_log=31)),
        ("a.txt.xz", lzma.compress(b"text\n" * 10, filters=filters)),
    ):
        message = refusal_of(write(tmp_path, name, content))
        assert "needs more than 128 MiB of memory to be decompressed, the most that is allowed" in message


def test_zeros_between_the_streams_of_an_xz_file_are_padding(tmp_path: Path) -> None:
    padded = lzma.compress(b"one\ntw") + b"\0" * 8 + lzma.compress(b"o\nthree\n") + b"\0" * 4
    assert list(read_source(write(tmp_path, "a.txt.xz", padded))) == ["one", "two", "three"]
    assert "is damaged or cut off" in refusal_of(write(tmp_path, "b.txt.xz", padded + b"more"))


def test_named_pipes_devices_sockets_and_links_to_nothing_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "good.txt", b"text\n")
    pipe, link, listener = (tmp_path / name for name in ("pipe.txt", "link.txt", "socket.txt"))
    os.mkfifo(pipe)
    for source in (pipe, tmp_path, f"{tmp_path}/*.txt", f"{tmp_path}/**/*.txt"):
        assert refusal_of(source) == f"{pipe} is a named pipe; give a regular file"
    with pytest.raises(InputError, match="is a named pipe"):
        list(read_lines(pipe))
    pipe.unlink()
    link.symlink_to("/dev/zero")
    assert refusal_of(tmp_path) == f"{link} is a device; give a regular file"
    link.unlink()
    link.symlink_to("absent.txt")
    assert refusal_of(tmp_path) == f"{link} is a link to a file that is not there; repair or remove it"
    link.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(listener))
        assert refusal_of(tmp_path) == f"{listener} is a socket; give a regular file"


def test_a_parquet_file_whose_names_are_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a text"], "other": ["b"]}), path)
    path.write_bytes(path.read_bytes().replace(b"other", b"\xefther"))
    assert f"{path} is damaged or no Parquet file" in refusal_of(path)


def test_a_corrupt_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"text {n}" for n in range(10_000)]}), path, row_group_size=1000)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[: len(whole) // 2], b"no parquet at all", b"\xff" * 20_000 + whole[20_000:]):
        path.write_bytes(content)
        assert f"{path} is damaged or no Parquet file" in refusal_of(path)


def test_a_parquet_column_that_holds_no_strings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [1, 2]}), path)
    assert f"column 'text' of {path} holds int64; expected strings" in refusal_of(path)


def test_parquet_nulls_dictionaries_and_invalid_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pyarrow.array(["one", None, "  ", "one"]).dictionary_encode()
    parquet.write_table(pyarrow.table({"text": texts}), path)
    assert list(read_source(path)) == ["one", "one"]
    raw = pyarrow.array([b"good", b"bad \xff"], pyarrow.binary())
    buffers = pyarrow.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    parquet.write_table(pyarrow.table({"text": buffers}), path)
    report = ReadingReport()
    assert list(read_source(path, report)) == ["good", "bad \ufffd"]
    assert report.num_invalid_lines == 1


def jsonl(num_good: int, bad: list[bytes]) -> bytes:
    good = [json.dumps({"text": f"document {number}"}).encode() for number in range(num_good)]
    return b"\n".join([*good[:5], *bad, *good[5:]]) + b"\n"


BAD_LINES = [b"{broken", b'["a list"]', b'{"text": 7}', b'{"body": "x"}', b"[" * 200_000, b'{"text": null}', b'"x"']


def test_broken_lines_are_skipped_counted_and_the_first_shown(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl(1000, BAD_LINES))
    report = ReadingReport()
    documents = list(read_source(path, report))
    assert len(documents) == report.num_documents == 1000
    assert report.num_bad_records == 7
    assert len(report.bad_records) == 3
    (warning,) = report.warnings()
    assert "7 broken records were skipped" in warning
    assert f"{path}:6 is not JSON" in warning
    assert f"{path}:7 holds a list, not an object" in warning
    assert f"{path}:8 'text' holds a int, not a string" in warning


def test_more_than_the_set_share_of_broken_lines_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl(198, BAD_LINES[:2]))
    assert len(list(read_source(path))) == 198
    path = write(tmp_path, "b.jsonl", jsonl(197, BAD_LINES[:3]))
    message = refusal_of(path)
    assert f"3 of the first 200 records are broken, first {path}:6 is not JSON" in message
    assert "raise max_bad_share (now 0.01)" in message
    assert len(list(read_source({"path": str(path), "max_bad_share": 0.02}))) == 197


def test_few_records_are_no_ground_for_a_share(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl(20, BAD_LINES))
    assert len(list(read_source(path))) == 20


def test_a_large_broken_file_is_given_up_early(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", jsonl(5, [b"{broken"] * 5000))
    assert "100 of the first 105 records are broken" in refusal_of(path)


def test_a_file_of_nothing_but_broken_lines_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", b"{broken\n" * 10)
    assert "it holds no text but 10 broken records" in refusal_of(path)


def test_csv_rows_of_another_width_are_broken_records(tmp_path: Path) -> None:
    rows = "".join(f"{number},document {number}\n" for number in range(300))
    path = write(tmp_path, "a.csv", f"id,text\n7,too,many\n{rows}\n8\n\n".encode())
    report = ReadingReport()
    assert len(list(read_source(path, report))) == 300
    assert report.num_bad_records == 2
    assert f"{path}:2 has 3 fields, not 2" in report.warnings()[0]


def test_a_quote_that_is_never_closed_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", b'id,text\n1,fine\n2,"open\n3,swallowed\n')
    assert f"{path}:3 opens a quote that is never closed" in refusal_of(path)


def test_long_csv_fields_and_lone_tsv_quotes_are_text(tmp_path: Path) -> None:
    long = "word " * 100_000
    assert list(read_source(write(tmp_path, "a.csv", f'text\n"{long}"\n'.encode()))) == [long.strip()]
    path = write(tmp_path, "a.tsv", b'id\ttext\n1\t"quoted" start\n2\t"lone\n')
    assert list(read_source(path)) == ['"quoted" start', '"lone']


def test_mixed_encodings_are_replaced_and_counted(tmp_path: Path) -> None:
    latin = '{"text": "caf\xe9"}'.encode("latin-1")
    path = write(
        tmp_path, "a.jsonl", b'\xef\xbb\xbf{"text": "caf\xc3\xa9"}\n' + latin + b'\n{"text": "\\ud83d half"}\n'
    )
    report = ReadingReport()
    assert list(read_source(path, report)) == ["café", "caf\ufffd", "\ufffd half"]
    assert report.num_invalid_lines == 2
    (warning,) = report.warnings(path)
    assert f"2 lines are not valid UTF-8 (first {path}:2, {path}:3)" in warning


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.txt.gz"])
@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_an_empty_source_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path, name, gzip.compress(content) if name.endswith(".gz") else content)
    assert refusal_of(path).startswith(f"{path} ")
    assert "is empty" in refusal_of(tmp_path) or "no column" in refusal_of(tmp_path)


@pytest.mark.parametrize("name", ["a.doc", "a", "a.gz", "txt", "a.txt.zip"])
def test_an_unknown_suffix_is_answered_with_the_known_ones(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, b"text\n")
    message = refusal_of(path)
    assert f"{path} has an unknown suffix; known are .txt, .jsonl, .ndjson, .csv, .tsv, .parquet" in message
    assert ".gz, .bz2, .xz, .zst" in message


def test_what_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    assert refusal_of(tmp_path / "absent.txt") == f"no file, folder or glob match at {tmp_path / 'absent.txt'}"
    assert "holds no file that can be read" in refusal_of(tmp_path)
    assert "looks like UTF-16-LE" in refusal_of(write(tmp_path, "a.jsonl", '{"text": "x"}'.encode("utf-16-le")))
    assert "cannot be read: File name too long" in refusal_of("x" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_one_may_not_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.txt", b"text\n")
    path.chmod(0)
    assert refusal_of(path) == f"{path} cannot be read: Permission denied"
