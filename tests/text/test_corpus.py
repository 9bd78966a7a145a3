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


def test_a_line_of_ten_megabytes_is_read_whole_and_warned_about(tmp_path: Path) -> None:
    long_line = "word " * 2_000_000
    path = write(tmp_path, f"short\n{long_line}\nshort too\n".encode())
    report = ReadingReport()
    assert list(read_lines(path, report)) == ["short", long_line.strip(), "short too"]
    (warning,) = report.warnings(path)
    assert "line 2 (9,999,999 characters)" in warning
    assert "nothing lost" in warning


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
        ("text in sixteen bits".encode("utf-16"), "is a binary file"),
        ("これは日本語の文章です".encode("shift_jis"), "is not UTF-8 text"),
    ],
    ids=["empty", "blank", "only-a-byte-order-mark", "binary", "utf-16", "shift-jis"],
)
def test_a_file_without_text_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=complaint) as refusal:
        list(read_lines(path))
    assert str(path) in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file at .*absent\.txt"):
        list(read_lines(tmp_path / "absent.txt"))


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; give a file"):
        list(read_lines(tmp_path))


def test_a_path_the_system_cannot_open_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        list(read_lines(tmp_path / ("x" * 5000)))
