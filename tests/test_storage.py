from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from maskwright import storage
from maskwright.data.shards import is_prepared, read_manifest
from maskwright.errors import InputError
from maskwright.inference.kept_answers import KeptAnswers, keep_answers
from maskwright.inference.outputs import AnswerColumns
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.prepare import prepare
from maskwright.sections.data import build_sources
from maskwright.storage import dump_yaml, read_json, restore_folder, whole_folder, write_text
from maskwright.text.tokenizer.tokenizer import load_tokenizer
from maskwright.text.wiki.preprocess import _whole_file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "value", ["größer", "an emoji 😀", "half \ud83d", "a: b", "[MASK]", "1e-5", "", "x " * 90, None, 1e-5]
)
@pytest.mark.parametrize("has_libyaml", [yaml.__with_libyaml__, False])
def test_yaml_is_written_as_by_pyyaml_alone(monkeypatch: pytest.MonkeyPatch, value: Any, has_libyaml: bool) -> None:
    monkeypatch.setattr("yaml.__with_libyaml__", has_libyaml)
    values = {"b": [value], "a": {"none": {}, "one": value}}
    assert dump_yaml(values) == yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


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


class CrashError(Exception):
    """Where a machine would have failed."""


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """The `call`-th use of a function of `os` fails."""
    original, calls = getattr(os, name), []

    def failing(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            raise CrashError
        return original(*arguments)

    monkeypatch.setattr(os, name, failing)


def put(folder: Path, name: str) -> None:
    with whole_folder(folder) as temporary:
        (temporary / name).write_text("1")


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_a_crash_inside_a_replacement_loses_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Where names cannot be swapped in one step, as on network file systems."""
    put(tmp_path / "made", "old")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "_exchange", lambda one, other: False)
        fail_at(patch, "rename", moment)
        with pytest.raises(CrashError):
            put(tmp_path / "made", "new")
    restore_folder(tmp_path / "made")
    assert names(tmp_path / "made") == (["old"] if moment < 3 else ["new"])
    with pytest.raises(CrashError), whole_folder(tmp_path / "made"):
        raise CrashError
    assert names(tmp_path / "made") == (["old"] if moment < 3 else ["new"]), "a failed writer changes nothing"
    put(tmp_path / "made", "newest")
    assert names(tmp_path / "made") == ["newest"]
    assert names(tmp_path) == ["made"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
def test_the_name_is_never_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "made", "old")
    (tmp_path / "other").mkdir()
    if not storage._exchange(tmp_path / "made", tmp_path / "other"):
        pytest.skip("this file system cannot swap names")
    storage._exchange(tmp_path / "made", tmp_path / "other")
    fail_at(monkeypatch, "rename", 1)
    put(tmp_path / "made", "new")
    assert names(tmp_path / "made") == ["new"]


@pytest.mark.parametrize("can_swap", [True, False])
def test_a_half_removed_folder_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_swap: bool
) -> None:
    put(tmp_path / "made", "old")
    if not can_swap:
        monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)  # as if killed before anything is removed
    put(tmp_path / "made", "new")
    (tmp_path / "made").rename(tmp_path / "taken away")
    restore_folder(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_readers_find_a_folder_that_a_crash_left_aside(tmp_path: Path, trained_run: Path) -> None:
    shutil.copytree(trained_run / "model", tmp_path / "model")
    sources, tokenizer = build_sources(str(write_corpus(tmp_path))), load_tokenizer(tmp_path / "model")
    prepare(sources, tokenizer, tmp_path / "shards", num_workers=1)
    for folder, is_found in (
        (tmp_path / "model", lambda folder: (resolve_folder(folder) / "config.json").is_file()),
        (tmp_path / "model", lambda folder: load_tokenizer(folder).vocab_size == tokenizer.vocab_size),
        (tmp_path / "shards", is_prepared),
        (tmp_path / "shards", lambda folder: bool(read_manifest(folder)["splits"])),
    ):
        folder.rename(folder.with_name(f".{folder.name}.old"))
        assert is_found(folder)


def write_corpus(folder: Path) -> Path:
    path = folder / "corpus.txt"
    path.write_text("the cat sees the green house\n" * 3, encoding="utf-8")
    return path


def test_a_full_disk_is_said_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "file.txt", "old")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file\.txt'"):
        write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "file.txt").read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_full_disk_is_said_with_the_name_the_folder_would_have(tmp_path: Path) -> None:
    def fill(error: OSError) -> str:
        with pytest.raises(OSError, match=r"device|denied") as caught, whole_folder(tmp_path / "folder"):
            raise error
        assert names(tmp_path) == []
        return str(caught.value.filename)

    temporary = str(tmp_path / ".folder.tmp" / "part" / "file.bin")
    assert fill(OSError(errno.ENOSPC, "No space left on device")) == str(tmp_path / "folder")
    assert fill(OSError(errno.ENOSPC, "No space left on device", temporary)) == str(
        tmp_path / "folder" / "part" / "file.bin"
    )
    assert fill(OSError(errno.EDQUOT, "no room on this device", "/elsewhere")) == "/elsewhere"
    assert fill(OSError(errno.EACCES, "Permission denied", temporary)) == temporary


@contextmanager
def _keep_one_answer(path: Path) -> Iterator[KeptAnswers]:
    with keep_answers(path, AnswerColumns(answers={"embedding": np.zeros(1, np.float32)})) as kept:
        kept.write({"embedding": np.ones(1, np.float32)})
        yield kept
        kept.finish()


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.parquet", "answers.npz", "wiki.txt"])
def test_a_full_disk_is_said_with_the_name_the_file_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    open_file = _whole_file if name == "wiki.txt" else _keep_one_answer
    with pytest.raises(OSError, match="No space left on device") as caught, open_file(tmp_path / name) as writer:
        assert writer is not None
    assert caught.value.filename == str(tmp_path / name)
    assert names(tmp_path) == []


_APPEND_TOO_MUCH = """
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from maskwright.storage import append_text

for text in ("first\\n", "x" * 100 + "\\n"):
    try:
        append_text(Path(sys.argv[1]), text)
    except OSError as error:
        print(error.errno, error.filename)
"""


def test_what_was_written_of_a_line_that_did_not_fit_is_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))

    command = [sys.executable, "-c", _APPEND_TOO_MUCH, str(file)]
    result = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=True)
    assert result.stdout == f"{errno.EFBIG} {file}\n"
    assert file.read_text() == "first\n"
