from __future__ import annotations

from pathlib import Path

import pytest

from maskwright.errors import InputError
from maskwright.storage import read_json, whole_folder, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_under_its_name_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "grün\n")
    write_text(tmp_path / "file.txt", "größer\n")
    assert (tmp_path / "file.txt").read_text(encoding="utf-8") == "größer\n"
    assert names(tmp_path) == ["file.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_text(tmp_path / "file.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file.txt", "half \ud800")
    assert (tmp_path / "file.txt").read_text() == "old"


def test_json_objects_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "complaint"), [(b'{"a":', "not valid JSON"), (b"\xff\xfe", "not valid JSON"), (b"[1]", "holds a list")]
)
def test_json_that_is_broken_or_no_object_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.json.* {complaint}"):
        read_json(tmp_path / "a.json")


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "made") as temporary:
        (temporary / "a").write_text("1")
        assert not (tmp_path / "made").exists()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["a"]


def test_a_folder_that_fails_midway_leaves_the_old_one(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "made") as temporary:
        (temporary / "old").write_text("1")
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "made") as temporary:
        (temporary / "no such folder" / "new").write_text("2")
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["old"]


def test_a_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    for name in ("old", "new"):
        with whole_folder(tmp_path / "made") as temporary:
            (temporary / name).write_text("1")
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["new"]


def test_leftovers_of_a_killed_attempt_do_not_get_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / ".made.tmp").mkdir()
    (tmp_path / ".made.tmp" / "leftover").write_text("1")
    with whole_folder(tmp_path / "made") as temporary:
        (temporary / "new").write_text("2")
    assert names(tmp_path / "made") == ["new"]
