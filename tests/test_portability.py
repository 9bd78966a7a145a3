"""Windows, as far as it can be pretended here: what only POSIX has is taken away before our modules are imported."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import maskwright
from maskwright import machine

POSIX = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty")
PRETENDED = (
    f"""
POSIX = {POSIX}
"""
    + """
import importlib, os, pkgutil, signal, sys, tempfile
from pathlib import Path

import maskwright

NAMES = [one.name for one in pkgutil.walk_packages(maskwright.__path__, "maskwright.") if "__main__" not in one.name]
KERNELS = []
for name in NAMES:  # what ours import of others is of this system
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:  # kernels for GPUs are imported only where Triton is
        if error.name != "triton":
            raise
        KERNELS.append(name)
NAMES = [name for name in NAMES if name not in KERNELS]
for name in [name for name in sys.modules if name.partition(".")[0] == "maskwright"]:
    del sys.modules[name]
for name in POSIX:
    sys.modules[name] = None
for name in ("fork", "getuid", "geteuid", "killpg", "pwrite", "register_at_fork", "sched_getaffinity", "setsid",
             "sync", "sysconf", "uname", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "setitimer", "pthread_kill"):
    delattr(signal, name)
kill = os.kill
os.kill = None
sys.platform = "win32"
os.supports_fd.discard(os.utime)
for name in NAMES:
    importlib.import_module(name)

from maskwright.machine import read_process_memory
from maskwright.ownership import is_owned, owning
from maskwright.storage import whole_folder, write_text

with tempfile.TemporaryDirectory() as place:
    folder = Path(place) / "run"
    with owning(folder, say=print):
        write_text(Path(place) / "text.txt", "whole")
        with whole_folder(folder) as temporary:
            (temporary / "file.txt").write_text("x")
        assert is_owned(Path(place) / ".run.lock")
    assert sorted(path.name for path in Path(place).iterdir()) == ["run", "text.txt"]
print("imported", len(NAMES))
"""
)


def test_what_only_posix_has_is_imported_under_a_guard_or_where_it_is_used() -> None:
    """The quick half of the test below: no module of ours needs it to be imported."""
    named = re.compile(rf"\b({'|'.join(POSIX)})\b")
    needed = {
        f"{file.name}: {name}"
        for file in Path(maskwright.__file__).parent.rglob("*.py")
        if named.search(source := file.read_text(encoding="utf-8"))  # parsing all of them takes a second
        for statement in ast.parse(source).body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in list_imported(statement)
        if name in POSIX
    }
    assert needed == set()


def list_imported(statement: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [str(statement.module)]
    return [one.name for one in statement.names]


@pytest.mark.slow
def test_every_module_is_imported_without_what_only_posix_has(tmp_path: Path) -> None:
    """And a folder is owned and written, with the calls that Windows has."""
    done = subprocess.run([sys.executable, "-c", PRETENDED], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 200


def test_the_memory_of_windows_is_asked_for_through_its_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(pointer: Any) -> int:
        status = pointer._obj
        assert status.length == ctypes.sizeof(status) == 64  # of MEMORYSTATUSEX
        status.total = 17 << 30
        return 1

    library = SimpleNamespace(kernel32=SimpleNamespace(GlobalMemoryStatusEx=fill))
    monkeypatch.setattr(ctypes, "windll", library, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    assert machine.read_machine_memory() == 17 << 30
    monkeypatch.setattr(machine, "_STATISTICS", Path("absent"))
    assert machine.read_process_memory() == 0


def test_memory_is_that_of_the_machine_or_its_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", ())
    whole = machine.read_machine_memory()
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [tmp_path / "memory.max", tmp_path / "absent"]
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", tuple(map(str, limits)))
    limits[0].write_text("max\n")
    assert machine.read_machine_memory() == whole
    limits[0].write_text("4096\n")
    assert machine.read_machine_memory() == 4096


@pytest.mark.parametrize(("platform", "factor"), [("linux", 1024), ("darwin", 1)])
def test_without_proc_the_peak_is_read_in_the_system_s_unit(
    monkeypatch: pytest.MonkeyPatch, platform: str, factor: int
) -> None:
    monkeypatch.setattr(machine, "_STATISTICS", Path("absent"))
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(machine.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=7))
    assert machine.read_process_memory() == 7 * factor
