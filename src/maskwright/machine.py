"""What the operating system says of memory, on Linux, macOS and Windows; and which code is installed here."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import resource

_STATISTICS = Path("/proc/self/statm")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def read_process_memory() -> int:
    """Bytes that this process holds now; on macOS the most it ever held; 0 on Windows, which is not asked."""
    if _STATISTICS.is_file():
        return int(_STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_machine_memory() -> int:
    """Bytes of memory that this process may use: those of the machine, or of its container."""
    if sys.platform == "win32":
        return _ask_windows()
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in map(Path, _CGROUP_LIMITS):
        limit = file.read_text().strip() if file.is_file() else ""
        limits += [int(limit)] if limit.isdigit() else []  # "max": no limit
    return min(limits)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load_percent", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "free", "total_paged", "free_paged", "total_virtual")),
        ("free_virtual", ctypes.c_uint64),
        ("free_extended", ctypes.c_uint64),
    )


def _ask_windows() -> int:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    windows: Any = getattr(ctypes, "windll")  # noqa: B009 - there alone, as type checkers know
    windows.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.total)


def hash_package() -> str:
    """A short digest of this package's files, which differs between versions of the code."""
    root = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()
