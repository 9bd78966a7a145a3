"""Two commands on one folder: one works there, the other is refused in a sentence and changes nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_lab import Lab, last_step, read_result
from prestarted import Child, Prestarted

from maskwright import ownership
from maskwright.errors import InputError
from maskwright.ownership import owning


def own_until_killed(target: str) -> None:
    with owning(Path(target)):
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        time.sleep(600)


def own_beside_a_fork(target: str) -> None:
    with owning(Path(target)):
        if os.fork():
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdout.write("forked\n")
        sys.stdout.flush()
        time.sleep(600)


def wait_for(child: Child, word: str) -> None:
    while word not in child.text():
        assert child.poll() is None, child.text()
        time.sleep(0.01)


@pytest.fixture
def owner(prestarted: Prestarted, tmp_path: Path) -> Iterator[Child]:
    """Another process that owns `tmp_path/out`."""
    child = prestarted.start("test_two_owners:own_until_killed", {"target": str(tmp_path / "out")}, tmp_path / "owner")
    wait_for(child, "begun")
    yield child
    child.send(signal.SIGKILL)


class TestLock:
    def test_another_process_is_refused_with_the_name_of_the_owner(self, owner: Child, tmp_path: Path) -> None:
        with pytest.raises(
            InputError, match=rf"out is being written by process {owner.pid} on .*since .*another --out"
        ):
            owning(tmp_path / "out").__enter__()

    def test_the_lock_of_a_killed_process_is_taken_over_at_once(self, owner: Child, tmp_path: Path) -> None:
        owner.send(signal.SIGKILL)
        owner.wait()
        assert (tmp_path / ".out.lock").is_file()
        said: list[str] = []
        with owning(tmp_path / "out", say=said.append):
            assert json.loads((tmp_path / ".out.lock").read_text())["process"] == os.getpid()
        assert not (tmp_path / ".out.lock").exists()
        assert said == []

    @pytest.mark.parametrize("call", ["open", "ftruncate", "write", "fsync"])
    def test_an_interrupt_while_it_is_taken_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """Python runs a signal's handler when the call that it waited for returns."""
        original = getattr(os, call)

        def return_to_a_signal(*arguments: Any) -> None:
            monkeypatch.undo()
            original(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(ownership.os, call, return_to_a_signal)
        with pytest.raises(KeyboardInterrupt):
            owning(tmp_path / "out").__enter__()
        assert list(tmp_path.iterdir()) == []

    def test_an_interrupt_leaves_the_lock_of_another(
        self, owner: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(descriptor: int, operation: int) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(ownership.fcntl, "flock", interrupt)
        with pytest.raises(KeyboardInterrupt):
            owning(tmp_path / "out").__enter__()
        assert json.loads((tmp_path / ".out.lock").read_text())["process"] == owner.pid

    def test_a_process_that_was_forked_keeps_no_lock(self, prestarted: Prestarted, tmp_path: Path) -> None:
        target = str(tmp_path / "out")
        child = prestarted.start("test_two_owners:own_beside_a_fork", {"target": target}, tmp_path / "owner")
        child.wait()
        while "forked" not in child.text():
            time.sleep(0.01)
        with owning(tmp_path / "out"):
            pass

    def test_folders_made_for_the_lock_go_with_it(self, tmp_path: Path) -> None:
        with owning(tmp_path / "a" / "b" / "out"):
            assert (tmp_path / "a" / "b").is_dir()
        assert list(tmp_path.iterdir()) == []

    def test_a_block_inside_belongs_to_the_block_around_it(self, tmp_path: Path) -> None:
        with owning(tmp_path / "out"):
            with owning(tmp_path / "out"):
                pass
            assert (tmp_path / ".out.lock").is_file()

    def test_two_threads_are_two_owners(self, tmp_path: Path) -> None:
        errors: list[Exception] = []

        def own() -> None:
            try:
                with owning(tmp_path / "out"):
                    pass
            except InputError as error:
                errors.append(error)

        with owning(tmp_path / "out"):
            thread = threading.Thread(target=own)
            thread.start()
            thread.join()
        assert len(errors) == 1
        own()
        assert len(errors) == 1

    def test_a_lock_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"cannot write .*file.*; choose another --out"):
            owning(tmp_path / "file" / "out").__enter__()


class TestOtherMachines:
    """A file system that does not pass locks on is one where this machine gets the lock beside another's record."""

    @pytest.fixture
    def left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(ownership, "_WATCH_S", 0.3)
        monkeypatch.setattr(ownership, "_BEAT_S", 0.05)
        lock = tmp_path / ".out.lock"
        lock.write_text(json.dumps({"host": "elsewhere", "process": 7, "since": "noon", "token": "x"}))
        return lock

    def test_one_that_works_there_is_seen_by_its_beats(self, left: Path, tmp_path: Path) -> None:
        said: list[str] = []

        def touch_when_watched(text: str) -> None:
            said.append(text)
            threading.Timer(0.1, os.utime, (left,)).start()

        with pytest.raises(InputError, match="by process 7 on elsewhere"):
            owning(tmp_path / "out", say=touch_when_watched).__enter__()
        assert "looking for" in said[0]
        assert json.loads(left.read_text())["host"] == "elsewhere"

    def test_one_without_beats_was_left_behind(self, left: Path, tmp_path: Path) -> None:
        said: list[str] = []
        with owning(tmp_path / "out", say=said.append):
            assert json.loads(left.read_text())["process"] == os.getpid()
        assert len(said) == 1

    def test_the_owner_beats(self, left: Path, tmp_path: Path) -> None:
        left.unlink()
        with owning(tmp_path / "out"):
            first = left.stat().st_mtime_ns
            while left.stat().st_mtime_ns == first:
                time.sleep(0.01)

    @pytest.mark.parametrize("number", sorted(ownership._NO_LOCKS))
    def test_without_locks_the_record_decides(
        self, left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        def begin_together(seconds: float) -> None:
            left.write_text(json.dumps({"host": "elsewhere", "process": 8, "since": "noon", "token": "y"}))

        left.unlink()
        monkeypatch.setattr(ownership.fcntl, "flock", refuse)
        monkeypatch.setattr(ownership, "_SETTLING_S", 0.0)
        with owning(tmp_path / "out"):
            pass
        monkeypatch.setattr(ownership.time, "sleep", begin_together)
        with pytest.raises(InputError, match="by process 8 on elsewhere"):
            owning(tmp_path / "out").__enter__()

    @pytest.mark.parametrize("content", ["", "{", "[" * 5000, "123", "null", "{}"])
    def test_a_damaged_record_names_nobody_and_is_taken_over(self, tmp_path: Path, content: str) -> None:
        (tmp_path / ".out.lock").write_text(content)
        with owning(tmp_path / "out"):
            pass


@pytest.mark.slow  # the same command is refused in this process below
def test_a_second_train_is_refused_and_the_first_ends_as_if_alone(lab: Lab) -> None:
    first = lab.start("owned")
    while first.poll() is None and last_step(lab.folder / "owned") < 1:
        time.sleep(0.005)
    first.send(signal.SIGSTOP)  # or a quick machine would be done with it before the others have begun
    words = lab.words("owned")
    for number, more in enumerate(([], ["--overwrite"])):
        second = lab.start(f"second{number}", words=[*words, *more])
        assert second.wait() == 2
        assert f"is being written by process {first.pid} on" in second.text()
        assert "choose another run.name" in second.text()
    first.send(signal.SIGCONT)
    assert first.wait() == 0
    assert read_result(lab.folder / "owned") == lab.expected
    assert list((lab.folder / "owned").glob(".*")) == []


@pytest.mark.slow  # the lock is the one of the test above
def test_two_that_begin_at_the_same_moment_are_one_run(lab: Lab) -> None:
    both = [lab.start(f"pair{number}", words=lab.words("pair")) for number in range(2)]
    codes = sorted(child.wait() for child in both)
    assert codes == [0, 2], [child.text() for child in both]
    assert read_result(lab.folder / "pair") == lab.expected


@pytest.mark.parametrize(
    ("words", "lock"),
    [
        (["prepare", "{text}", "--tokenizer", "{run}", "--out", "{out}"], ".out.lock"),
        (["export", "{run}", "--to", "hf", "--out", "{out}"], ".out.lock"),
        (["prepare", "wiki", "{text}", "{out}.txt"], ".out.txt.lock"),
        (["tokenizer", "train", "{text}", "--out", "{out}"], ".out.lock"),
        (["tokenizer", "advise", "{run}", "{text}", "--min-count", "2", "--out", "{out}"], ".out.lock"),
        (["predict", "embed", "{run}", "{text}", "--out", "{out}.npz"], ".out.npz.lock"),
        (["adapt", "{run}", "--text", "{text}", "--out", "{out}"], "out/.lock"),
        (
            [
                "finetune",
                "classification",
                "--model",
                "{run}",
                "--train",
                "{labels}",
                "--validation",
                "{labels}",
                "--out",
                "{out}",
            ],
            "out/.lock",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_every_verb_refuses_a_target_that_another_writes(
    command: Callable[..., Any], corpus_file: Path, trained_run: Path, tmp_path: Path, words: list[str], lock: str
) -> None:
    """The other is a thread here, which is as strange to a command as another process, and begins at once."""
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps({"text": f"cat {n}", "label": "ab"[n % 2]}) + "\n" for n in range(20)))
    places = {"text": corpus_file, "run": trained_run, "out": tmp_path / "out"}
    filled = [word.format(**places, labels=labels) for word in words]
    has_begun, is_over = threading.Event(), threading.Event()

    def own() -> None:
        with owning(tmp_path / "out", lock=tmp_path / lock):
            has_begun.set()
            is_over.wait()

    other = threading.Thread(target=own)
    other.start()
    has_begun.wait()
    try:
        result = command(*filled)
    finally:
        is_over.set()
        other.join()
    assert result.code == 2, result
    assert f"is being written by process {os.getpid()} on" in result.err
    assert "Traceback" not in result.out + result.err
    assert {path.name for path in tmp_path.iterdir()} <= {"labels.jsonl", "out"}
