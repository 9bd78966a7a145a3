"""Paths to bytes: which files a path, folder or glob stands for, and their content as a decompressed stream."""

from __future__ import annotations

import glob
import hashlib
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from maskwright.errors import InputError

FORMATS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
MAX_LINE_BYTES = 64 << 20
_SNIFFED_BYTES = 8192
_CHUNK_BYTES = 1 << 20
_MAX_INVALID_SHARE = 0.3


class ByteStream:
    """A file's bytes after decompression, in order; damage is an `InputError` that says how far reading got."""

    def __init__(self, path: Path, stream: Any) -> None:
        self.path = path
        self.num_bytes = 0
        self._stream = stream
        self._unread = b""
        self.start = self.read(_SNIFFED_BYTES)
        self._unread = self.start

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """At most `size` bytes, none at the end."""
        if self._unread:
            data, self._unread = self._unread[:size], self._unread[size:]
            return data
        try:
            data = self._stream.read(size)
        except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
            raise InputError(
                f"{self.path} is damaged or cut off: {' '.join(str(error).split())} after {self.num_bytes:,} bytes"
                " of its content; fetch or compress the file again"
            ) from error
        self.num_bytes += len(data)
        return bytes(data)

    def check_text(self) -> None:
        """Refuse what is no UTF-8 text, judged by its start."""
        if b"\0" in self.start:
            raise InputError(f"{self.path} is a binary file (it holds NUL bytes); expected UTF-8 text")
        decoded = self.start.decode("utf-8", errors="replace")
        if decoded.count("\ufffd") > _MAX_INVALID_SHARE * len(decoded):
            raise InputError(f"{self.path} is not UTF-8 text: most of its first bytes are invalid; convert it to UTF-8")


@contextmanager
def open_stream(path: Path) -> Iterator[ByteStream]:
    """The file for reading from its start, decompressed as its suffix says."""
    with open_file(path) as file:
        yield ByteStream(path, _decompress(file, COMPRESSIONS.get(path.suffix.lower())))


def open_file(path: Path) -> BufferedReader:
    """The file as it is; what the system says against it becomes an `InputError`."""
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise InputError(f"no file at {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _decompress(file: BufferedReader, compression: str | None) -> Any:
    if compression is None:
        return file
    if compression == "xz":
        return lzma.LZMAFile(file)
    import pyarrow  # takes a tenth of a second that plain text need not wait for

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression)


def split_lines(stream: ByteStream, *, cut_long_lines: bool) -> Iterator[bytes]:
    """Lines without their newline; one over `MAX_LINE_BYTES` is cut at a space, or refused, to bound the memory."""
    pending = b""
    num_lines = 0
    while chunk := stream.read():
        lines = (pending + chunk).split(b"\n")
        pending = lines.pop()
        num_lines += len(lines)
        yield from lines
        if len(pending) > MAX_LINE_BYTES:
            if not cut_long_lines:
                raise InputError(
                    f"{stream.path}:{num_lines + 1} is a line of more than {MAX_LINE_BYTES >> 20} MiB;"
                    " expected one record per line"
                )
            place = _cutting_place(pending)
            yield pending[:place]
            pending = pending[place:]
    if pending:
        yield pending


def _cutting_place(line: bytes) -> int:
    """Behind the last space, or else before the last character that is surely whole."""
    place = line.rfind(b" ") + 1
    if place:
        return place
    place = len(line) - 1
    while place > len(line) - 4 and line[place] & 0xC0 == 0x80:
        place -= 1
    return place


def file_format(path: Path) -> str | None:
    """The format that the suffix names, before one of compression; None if it names none."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return FORMATS.get(name.suffix.lower())


def find_files(path: str) -> list[Path]:
    """The one file; or, sorted by name, every file of a known format that a folder (at any depth) or glob holds."""
    place = Path(path).expanduser()
    if _exists(place) and not place.is_dir():
        if file_format(place) is None:
            raise InputError(f"{place} has an unknown suffix; {_known_suffixes()}")
        return [place]
    if place.is_dir():
        found = [file for file in place.rglob("*") if not _is_hidden(file.relative_to(place))]
    elif glob.has_magic(path):
        found = [Path(name) for name in glob.iglob(str(place), recursive=True)]
    else:
        raise InputError(f"no file, folder or glob match at {place}")
    files = sorted((file for file in found if file_format(file) and file.is_file()), key=lambda file: file.as_posix())
    if not files:
        raise InputError(f"{place} holds no file that can be read; {_known_suffixes()}")
    return files


def hash_file(path: Path) -> str:
    """A hexadecimal digest of the content (BLAKE2b, 128 bits), read as a stream."""
    with open_file(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _known_suffixes() -> str:
    return f"known are {', '.join(FORMATS)}, each also with {', '.join(COMPRESSIONS)}"
