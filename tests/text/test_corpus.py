from __future__ import annotations

from pathlib import Path

import pytest

from maskwright.errors import InputError
from maskwright.text.corpus import ReadingReport, read_lines


def write(folder: Path, content: bytes) -> Path:
    path = folder / "text.txt"
    path.write_bytes(content)
    return path


def test_blank_lines_are_skipped_and_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    path = write(tmp_path, b"\none\n\n  \t \ntwo\nthree")
    report = ReadingReport()
    assert list(read_lines(path, report)) == ["one", "two", "three"]
    assert report.num_documents == 3
    assert report.warnings(path) == []


def test_windows_line_ends_and_byte_order_mark_are_no_part_of_the_text(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, b"\xef\xbb\xbfone\r\n\r\ntwo\r\n"))) == ["one", "two"]


def test_invalid_utf8_is_replaced_and_the_lines_counted_in_one_warning(tmp_path: Path) -> None:
    path = write(tmp_path, b"good line\nbad \xff line\nfine line here\nworse \xfe\xff line\n")
    report = ReadingReport()
    assert list(read_lines(path, report)) == [
        "good line",
        "bad \ufffd line",
        "fine line here",
        "worse \ufffd\ufffd line",
    ]
    assert report.num_invalid_lines == 2
    (warning,) = report.warnings(path)
    assert str(path) in warning
    assert "2 lines are not valid UTF-8" in warning


def test_a_line_of_ten_megabytes_is_cut_into_documents_with_nothing_lost_and_warned_about(tmp_path: Path) -> None:
    long_line = "word " * 2_000_000
    path = write(tmp_path, f"short\n{long_line}\nshort too\nbad \udcff line\n".encode(errors="surrogateescape"))
    report = ReadingReport()
    first, *pieces, last, _ = read_lines(path, report)
    assert (first, " ".join(pieces), last) == ("short", long_line.strip(), "short too")
    assert max(map(len, pieces)) <= 1_000_000
    assert report.num_documents == len(pieces) + 3
    assert report.invalid_lines == [f"{path}:4"]
    _, warning = report.warnings(path)
    assert (
        f"1 texts of more than 1,000,000 characters were cut into documents of at most that many (first {path}:2)"
        in (warning)
    )


def test_a_character_cut_by_the_sniffed_start_is_not_taken_for_damage(tmp_path: Path) -> None:
    text = "é" * 10_000
    report = ReadingReport()
    assert list(read_lines(write(tmp_path, b"x" + text.encode()), report)) == ["x" + text]
    assert report.num_invalid_lines == 0


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"\n  \n\t\r\n", "nothing but blank lines"),
        (b"\xef\xbb\xbf\n", "nothing but blank lines"),
        (b"PK\x03\x04\x00\x00binary", "is a binary file"),
        (b"a text with \0 in the midst of it", "is a binary file"),
        ("text in sixteen bits".encode("utf-16-le"), "looks like UTF-16-LE without a byte order mark"),
        ("一二三 漢字\n".encode("utf-16-be"), "looks like UTF-16-BE without a byte order mark"),
        ("text in more bits".encode("utf-32-le"), "looks like UTF-32-LE without a byte order mark"),
        ("cut off".encode("utf-16")[:-1], "byte order mark says UTF-16-LE, but its first 15 bytes are not"),
        ("これは日本語の文章です".encode("shift_jis"), "is not UTF-8 text"),
    ],
    ids=[
        "empty",
        "blank",
        "only-a-byte-order-mark",
        "binary",
        "nul",
        "utf-16-le",
        "utf-16-be",
        "utf-32",
        "half",
        "sjis",
    ],
)
def test_a_file_without_text_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=complaint) as refusal:
        list(read_lines(path))
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_text_with_the_mark_of_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    lines = [f"Zeile {number} 漢字 🙂 {'é' * (number % 7)}" for number in range(5000)]
    path = write(tmp_path, ("\ufeff" + "\r\n".join(lines)).encode(encoding))
    report = ReadingReport()
    assert list(read_lines(path, report)) == [line.strip() for line in lines]
    assert report.warnings() == []


def test_half_a_surrogate_pair_in_utf16_is_replaced_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffgood\nhalf \ud83d\n".encode("utf-16-le", "surrogatepass"))
    report = ReadingReport()
    assert [line[:6] for line in read_lines(path, report)] == ["good", "half \ufffd"]
    assert report.invalid_lines == [f"{path}:2"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file at .*absent\.txt"):
        list(read_lines(tmp_path / "absent.txt"))


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; give a file"):
        list(read_lines(tmp_path))


def test_a_path_the_system_cannot_open_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        list(read_lines(tmp_path / ("x" * 5000)))
