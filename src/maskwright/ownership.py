"""One process at a time writes to a folder or file: a lock that says who that is, where, and since when.

The kernel frees the lock of a process that ended, however it ended, so none has to be removed by hand. Not every
shared file system passes locks on to other machines. So the owner also touches its lock file every few seconds, and
a machine that finds the file of another watches it for a while before it takes it for left behind.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.storage import count_free_bytes, is_full
from maskwright.suggestions import OUT
from maskwright.terminal import echo

if sys.platform != "win32":
    import fcntl

Say = Callable[[str], None]
LOCK_FILE = ".lock"
_BEAT_S = 5.0
_WATCH_S = 30.0
"""Several beats: an owner may be late, on a busy machine or through a file system that caches."""
_SETTLING_S = 0.5
"""Without locks the later of two that begin together has its name in the file; both look after this time."""
_NO_LOCKS = {errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What a file system without locks answers."""
_RECORD_BYTES = 4096

_threads: dict[Path, int] = {}
"""Of the lock files that this process has or is about to take, the thread that does."""
_descriptors: set[int] = set()


@contextmanager
def owning(
    target: Path,
    *,
    lock: Path | None = None,
    instead: str = OUT,
    say: Say = lambda text: echo(text, err=True),
) -> Iterator[None]:
    """Inside the block no other process writes to `target`, a folder or file; InputError where one does already.

    The lock is a hidden file beside it unless `lock` names another. A block inside one of the same thread belongs to
    it. `instead` is the setting that names another target.
    """
    target = target.resolve()
    lock = target.with_name(f".{target.name}{LOCK_FILE}") if lock is None else lock.resolve()
    if _threads.get(lock) == threading.get_ident():
        yield
        return
    if _threads.setdefault(lock, threading.get_ident()) != threading.get_ident():
        raise _refuse(target, _read(lock), instead)
    try:
        with _making_folders(lock.parent, instead), _locked(target, lock, instead, say):
            yield
    finally:
        _threads.pop(lock, None)  # a fork has forgotten it


@contextmanager
def _making_folders(folder: Path, instead: str) -> Iterator[None]:
    """What was made for the lock alone goes with it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_write(folder, error, instead) from error
        yield
    finally:
        for path in missing:
            with suppress(OSError):  # something is in it by now
                path.rmdir()


@contextmanager
def _locked(target: Path, lock: Path, instead: str, say: Say) -> Iterator[None]:
    record = {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "token": uuid.uuid4().hex,
    }
    released = threading.Event()
    try:
        descriptor = _take(target, lock, record, instead, say)
    except Exception:
        raise
    except BaseException:  # interrupted
        _drop(lock, record)
        raise
    beats = threading.Thread(target=_beat, args=(descriptor, lock, released), name="owner", daemon=True)
    try:
        beats.start()
        yield
    finally:
        if record["process"] == os.getpid():  # a fork that comes here owns nothing
            released.set()
            if beats.ident is not None:
                beats.join()
            is_ours = _read(lock) == record  # or else another took it for left behind
            if is_ours and sys.platform != "win32":
                lock.unlink(missing_ok=True)  # before it is freed: afterwards it may be another's
            _close(descriptor)
            if is_ours and sys.platform == "win32":  # where open files cannot be removed
                lock.unlink(missing_ok=True)


def _take(target: Path, lock: Path, record: dict[str, Any], instead: str, say: Say) -> int:
    """A descriptor of the lock file, which says from now on that this process is the owner."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            _descriptors.add(descriptor)
            try:
                has_locks = _lock(descriptor)
                if _is_current(descriptor, lock):
                    _claim(target, lock, descriptor, record, has_locks, instead, say)
                    return descriptor
            except BaseException:
                _close(descriptor)
                raise
        except BlockingIOError:
            raise _refuse(target, _read(lock), instead) from None
        except OSError as error:
            raise _cannot_write(lock, error, instead) from error
        _close(descriptor)  # its owner ended between the opening and the locking


def _drop(lock: Path, record: dict[str, Any]) -> None:
    """Remove the file of an attempt that was interrupted; another's is locked by it, or has its name."""
    with suppress(OSError):
        descriptor = os.open(lock, os.O_RDWR)
        try:
            if _lock(descriptor) and _is_current(descriptor, lock) and _read(lock) in ({}, record):
                lock.unlink()
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """False where there are no locks; BlockingIOError where another process has this one."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _is_current(descriptor: int, lock: Path) -> bool:
    """Whether the file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), lock.stat())
    except FileNotFoundError:
        return False


def _claim(
    target: Path, lock: Path, descriptor: int, record: dict[str, Any], has_locks: bool, instead: str, say: Say
) -> None:
    owner = _read(lock)
    ended = not owner or (has_locks and owner.get("host") == record["host"])  # the kernel would know it
    if not ended and _is_beating(target, lock, owner, say):
        raise _refuse(target, owner, instead)
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(record).encode())
    os.fsync(descriptor)
    if not has_locks:
        time.sleep(_SETTLING_S)
        if _read(lock) != record:
            raise _refuse(target, _read(lock), instead)


def _is_beating(target: Path, lock: Path, owner: dict[str, Any], say: Say) -> bool:
    say(f"{target} was last written by {_describe(owner)}; looking for {_WATCH_S:.0f} s whether it still is")
    begun_s, first = time.monotonic(), _find_beat(lock)
    while _find_beat(lock) == first:
        if time.monotonic() - begun_s > _WATCH_S:
            return False
        time.sleep(_BEAT_S / 5)
    return True


def is_owned(lock: Path) -> bool:
    """Whether a process that writes has this lock, by its record and its beat; the lock itself is not touched.

    For those who only watch: to try a lock would refuse an owner that begins in this moment.
    """
    beat, owner = _find_beat(lock), _read(lock)
    if beat is None or not owner or time.time() - beat / 1e9 > _WATCH_S:
        return False
    process = owner.get("process")
    if owner.get("host") != socket.gethostname() or not isinstance(process, int):
        return True
    return _is_alive(process)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":  # where the signal 0 is Ctrl-C; the beat has to do
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's, or no number of a process
        return True
    return True


def _find_beat(lock: Path) -> int | None:
    try:
        with lock.open("rb") as file:  # which makes a network file system ask its server
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _beat(descriptor: int, lock: Path, released: threading.Event) -> None:
    target = descriptor if os.utime in os.supports_fd else lock
    while not released.wait(_BEAT_S):
        with suppress(OSError):  # a file system that is away for a moment; the next beat comes
            os.utime(target)


def _read(lock: Path) -> dict[str, Any]:
    """Who says that it is the owner; nothing where that cannot be read."""
    try:
        with lock.open("rb") as file:
            record = json.loads(file.read(_RECORD_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _describe(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    return f"process {owner.get('process')} on {owner.get('host')} (since {owner.get('since')})"


def _refuse(target: Path, owner: dict[str, Any], instead: str) -> InputError:
    return InputError(
        f"{target} is being written by {_describe(owner)}; wait until it ends, stop it, or choose another {instead}"
    )


def _cannot_write(path: Path, error: OSError, instead: str) -> InputError:
    if is_full(error):
        room = f"{count_free_bytes(path):,} bytes are free on its disk"
        return InputError(f"cannot write {path}: {error.strerror}; {room}; make room, or choose another {instead}")
    return InputError(f"cannot write {path}: {error.strerror}; choose another {instead}")


def _close(descriptor: int) -> None:
    _descriptors.discard(descriptor)
    os.close(descriptor)


def _forget() -> None:
    """A forked process would keep the lock of a parent that is killed."""
    for descriptor in tuple(_descriptors):
        _close(descriptor)
    _threads.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
