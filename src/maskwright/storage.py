"""Files that are either whole or absent: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from maskwright.errors import InputError, NewerFormatError

Record = TypeVar("Record")
_CURRENT_FOLDER = -100
_EXCHANGE = 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux's renameat2."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            temporary.write_text(text, encoding="utf-8")
            sync(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            temporary.write_bytes(content)
            sync(temporary)
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Inside the block, an OSError names `path`; otherwise it names no file, or a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def open_regular(path: Path) -> BinaryIO:
    """For reading; a link that leads elsewhere, a pipe or a device is refused by an OSError and never waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def dump_yaml(values: Mapping[str, Any]) -> str:
    """As `yaml.safe_dump`, in order and with all characters readable, in a tenth of the time where libyaml does it."""
    if yaml.__with_libyaml__:
        with suppress(UnicodeEncodeError):  # of half characters
            text: str = yaml.dump(values, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
            if "\\U" not in text:  # it writes an emoji as a number
                return text
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def append_text(path: Path, text: str) -> None:
    """Add to a file; if a full disk took only a part of it, that part is removed again."""
    with naming(path), path.open("ab", buffering=0) as file:
        end, rest = file.seek(0, os.SEEK_END), memoryview(text.encode())
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):  # of a device, which cannot be cut
                file.truncate(end)
            raise


def is_full(error: BaseException | None) -> bool:
    """Whether the disk or the user's quota was full."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextmanager
def naming_if_full(path: Path, temporary: Path) -> Iterator[None]:
    """Inside the block, the error of a full disk names `path`, if it names no file or a temporary one."""
    try:
        yield
    except OSError as error:
        name = str(path if error.filename is None else error.filename)
        if not is_full(error):
            raise
        raise OSError(error.errno, error.strerror, name.replace(str(temporary), str(path), 1)) from error


def count_free_bytes(path: Path) -> int:
    """Free bytes on the disk of a path, which may not exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    return shutil.disk_usage(existing).free


def describe_room(path: Path, num_bytes: int) -> str:
    return f"it needs {num_bytes:,} bytes, {count_free_bytes(path):,} are free on its disk"


PARSING_ERRORS = (ValueError, RecursionError)
"""Of JSON and YAML: not the format, not UTF-8, a number of thousands of digits, nested beyond Python's stack."""
_MOST_SAID = 200


def describe_parsing_error(error: BaseException) -> str:
    """One line; Python's advice for programmers is left out, and what a file says at length is cut."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())
    text = text.split(";")[0] if "sys.set_int_max_str_digits" in text else text
    return text if len(text) <= _MOST_SAID else f"{text[:_MOST_SAID]}..."


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except PARSING_ERRORS as error:
        raise InputError(f"{path} is not valid JSON: {describe_parsing_error(error)}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}; expected a JSON object")
    return value


def check_format_version(version: Any, newest: int, file: Path) -> None:
    """Refuse a file in a format that a later version of this program writes; files without a version are older."""
    if type(version) is not int or version < 1:
        raise InputError(f"{file} is damaged: its format version is {version!r:.80}, expected a number from 1 on")
    if version > newest:
        raise NewerFormatError(
            f"{file} has format version {version}, this maskwright reads up to {newest}; a newer version of maskwright"
            " wrote it, so use that one"
        )


def refuse_unknown_fields(found: Iterable[str], known: Collection[str], file: Path) -> None:
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise NewerFormatError(
            f"{file} has the field '{unknown[0]}', which this version does not know; a newer version of maskwright"
            " wrote it, so use that one, or it is damaged"
        )


_adapt: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Once for a kind: to build an adapter takes many times as long as to read a record with it."""


def read_record(kind: type[Record], values: Any, file: Path) -> Record:
    """Values of a JSON file as what they were written from, such as a dataclass; anything else is damage."""
    try:
        # as JSON, since only there a strict reading takes objects for dataclasses and lists for tuples
        stored: Record = _adapt(kind).validate_json(json.dumps(values), strict=True)
        return stored
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        found = "missing" if problem["type"] == "missing" else f"{problem['input']!r:.80}"
        raise InputError(f"{file} is damaged: '{key}' is {found}") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill; it takes the place of `folder` only when the block ends without an error."""
    folder = folder.resolve()
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with naming_if_full(folder, temporary):
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    sync(file)
            replace_folder(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync(folder.parent)


def replace_folder(new: Path, folder: Path) -> None:
    """Replace a folder by a finished one; a crash at any moment loses neither.

    The two swap names in one step where kernel and file system can. Elsewhere a crash may leave no folder of that
    name, but the old one beside it, which `restore_folder` brings back.
    """
    restore_folder(folder)
    if not folder.exists():
        os.rename(new, folder)
        return
    aside = _name_aside(folder)
    shutil.rmtree(aside, ignore_errors=True)
    if not _exchange(new, folder):
        os.rename(folder, aside)
        os.rename(new, folder)
        os.rename(aside, new)
    shutil.rmtree(new)


def restore_folder(folder: Path) -> None:
    """Restore a folder that was moved aside when a crash interrupted its replacement; call this before reading it."""
    folder = Path(os.path.realpath(folder))
    aside = _name_aside(folder)
    if aside.is_dir() and not folder.exists():
        with suppress(FileNotFoundError):  # another process was faster
            os.rename(aside, folder)


def _name_aside(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    names = (_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other))
    return bool(rename(*names, _EXCHANGE) == 0)


def sync(path: Path) -> None:
    is_windows = sys.platform == "win32"
    if is_windows and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
