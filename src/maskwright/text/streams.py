"""A file's content as a stream of bytes: opened, decompressed within limits, turned into UTF-8 and split into lines."""

from __future__ import annotations

import codecs
import lzma
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.stores.addresses import Place, StoreUrl
from maskwright.stores.objects import BUFFER_BYTES, measure_file, open_object
from maskwright.text import sentences

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
MAX_LINE_BYTES = 64 << 20
"""Of a record; a longer line of plain text is cut."""
MAX_EXPANSION = 500
"""Text compresses 3 to 10 times, and logs up to 100 times; a higher ratio is taken for a decompression bomb."""
FREE_BYTES = 64 << 20
"""A compressed file may always expand to this size."""
_MAX_WINDOW_BYTES = 128 << 20
"""The largest decompression window, which is zstd's own limit; xz -9 needs half of it."""
_SNIFFED_BYTES = 8192
_CHUNK_BYTES = 1 << 20
_COMPRESSED_BYTES = 1 << 16
_MAX_INVALID_SHARE = 0.3
_MIN_TEXT_SHARE = 0.95
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_SPECIAL_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


class ByteStream:
    """A file's bytes after decompression, in order; damage is an `InputError` that says how far reading got.

    Text with the byte order mark of UTF-16 or UTF-32 comes as UTF-8; the mark itself is left out, UTF-8's too.
    `compressed` is the file that `stream` decompresses, which may grow `MAX_EXPANSION` times.
    """

    def __init__(self, path: Place, stream: Any, compressed: BufferedReader | None = None) -> None:
        self.path = path
        self.num_bytes = 0
        self.num_taken = 0
        """Bytes of the lines that a reader has had; it reads ahead."""
        self._size = 0
        self._stream, self._compressed = stream, compressed
        self._decoder: codecs.IncrementalDecoder | None = None
        start = self._read(_SNIFFED_BYTES)
        mark = next((mark for mark in _MARKS if start.startswith(mark)), b"")
        start = start[len(mark) :]
        if mark and _MARKS[mark] != "utf-8":
            # half of a surrogate pair stays what it is, so that its line is counted as invalid
            self._decoder = codecs.getincrementaldecoder(_MARKS[mark])(errors="surrogatepass")
            start = self._convert(start)
        self.start = self._unread = start

    @property
    def share(self) -> float:
        """How much of the file a reader of lines has had; of a compressed one by how it grew so far."""
        file = self._stream if self._compressed is None else self._compressed
        if not self._size:
            self._size = max(1, measure_file(file))
        return min(1.0, self.num_taken / max(1, self.num_bytes) * file.tell() / self._size)

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """About `size` bytes, none at the end."""
        if self._unread:
            data, self._unread = self._unread[:size], self._unread[size:]
            return data
        data = self._read(size)
        return data if self._decoder is None else self._convert(data)

    def _read(self, size: int) -> bytes:
        try:
            data = bytes(self._stream.read(size))
        except InputError:  # of a store that answers no more
            raise
        except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
            reason = " ".join(str(error).split())
            if self._compressed is not None and "memory" in reason.lower():
                raise InputError(
                    f"{self.path} needs more than {_MAX_WINDOW_BYTES >> 20} MiB of memory to be decompressed, the most"
                    " that is allowed; compress it again with a smaller window"
                ) from error
            raise InputError(
                f"{self.path} is damaged or cut off: {reason} after {self.num_bytes:,} bytes of its content; fetch or"
                " compress the file again"
            ) from error
        self.num_bytes += len(data)
        if self._compressed is not None:
            check_expansion(self.path, self._compressed.tell(), self.num_bytes)
        return data

    def _convert(self, data: bytes) -> bytes:
        """UTF-8 of the next bytes of another encoding: of one character at least, unless this is the end."""
        assert self._decoder is not None
        try:
            text = self._decoder.decode(data, final=not data)
            while data and not text:
                data = self._read(_COMPRESSED_BYTES)
                text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self.path} is damaged or cut off: its byte order mark says {error.encoding.upper()}, but its first"
                f" {self.num_bytes:,} bytes are not ({error.reason}); convert it to UTF-8"
            ) from error
        return text.encode("utf-8", "surrogatepass")

    def check_text(self) -> None:
        """Refuse files that are not UTF-8 text, judged by their start."""
        if encoding := _guess_wide_encoding(self.start):
            raise InputError(
                f"{self.path} looks like {encoding} without a byte order mark; convert it to UTF-8, or save it with its"
                " mark"
            )
        if b"\0" in self.start:
            raise InputError(f"{self.path} is a binary file (it holds NUL bytes); expected UTF-8 text")
        decoded = self.start.decode("utf-8", errors="replace")
        if decoded.count("\ufffd") > _MAX_INVALID_SHARE * len(decoded):
            raise InputError(
                f"{self.path} is not UTF-8 text: most of its first bytes are invalid, as in Shift JIS, GBK or"
                " Windows-1251; convert it to UTF-8, for example with iconv"
            )


def _guess_wide_encoding(start: bytes) -> str | None:
    """UTF-16 or UTF-32, if the bytes are text in it; the right order of bytes makes most ASCII characters."""
    num_zeros = start.count(0)
    if not num_zeros or (4 * num_zeros < len(start) and "\ufffd" not in start.decode("utf-8", errors="replace")):
        return None
    guesses: dict[str, int] = {}
    for codec in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        try:
            text = codecs.getincrementaldecoder(codec)().decode(start)
        except UnicodeDecodeError:
            continue
        num_textual = sum(character.isprintable() or character.isspace() for character in text)
        if num_textual > _MIN_TEXT_SHARE * len(text):
            guesses[codec] = sum(map(str.isascii, text))
    best = max(guesses, key=lambda codec: guesses[codec], default=None)
    return best.upper() if best is not None and guesses[best] else None


def check_expansion(path: Place, num_compressed: int, num_bytes: int) -> None:
    """Refuse a file whose first `num_compressed` bytes became too many."""
    if num_bytes > max(FREE_BYTES, MAX_EXPANSION * num_compressed):
        raise InputError(
            f"{path} grows more than {MAX_EXPANSION} times when it is decompressed, which no text does: refused after"
            f" {num_bytes:,} bytes of its content; decompress it yourself if that is right"
        )


@contextmanager
def open_stream(path: Place) -> Iterator[ByteStream]:
    """The file for reading from its start, decompressed as its suffix says."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    with open_file(path) as file:
        if compression is None:
            yield ByteStream(path, file)
        else:
            yield ByteStream(path, _decompress(file, compression), compressed=file)


def open_file(path: Place, buffer_bytes: int = BUFFER_BYTES) -> BufferedReader:
    """Open a file without decompression; errors of the system become an `InputError`.

    Of an object in a store each request asks for `buffer_bytes`.
    """
    if isinstance(path, StoreUrl):
        return open_object(path, buffer_bytes)
    try:
        refuse_special(path, path.stat().st_mode)
        return path.open("rb")
    except FileNotFoundError as error:
        raise InputError(f"no file at {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def refuse_special(path: Path, mode: int) -> None:
    """Refuse named pipes, devices and sockets, which may block or never end."""
    kind = _SPECIAL_FILES.get(stat.S_IFMT(mode))
    if kind is not None:
        raise InputError(f"{path} is {kind}; give a regular file")


def _decompress(file: BufferedReader, compression: str) -> Any:
    if compression == "xz":
        return _XzStream(file)
    import pyarrow  # takes a tenth of a second that plain text need not wait for

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), compression)


class _XzStream:
    """As `lzma.LZMAFile`, which takes as much memory as the file asks for."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(memlimit=_MAX_WINDOW_BYTES)

    def read(self, size: int) -> bytes:
        """At most `size` bytes, none at the end of the last of the file's streams."""
        while True:
            if self._decompressor.eof:
                data = (self._decompressor.unused_data or self._file.read(_COMPRESSED_BYTES)).lstrip(b"\0")
                if not data and not (data := self._file.read(_COMPRESSED_BYTES).lstrip(b"\0")):
                    return b""
                self._decompressor = lzma.LZMADecompressor(memlimit=_MAX_WINDOW_BYTES)
            else:
                data = self._file.read(_COMPRESSED_BYTES) if self._decompressor.needs_input else b""
                if not data and self._decompressor.needs_input:
                    raise EOFError("the file ends before its compressed content does")
            if made := self._decompressor.decompress(data, size):
                return made


def split_lines(stream: ByteStream, *, cut_long_lines: bool) -> Iterator[tuple[int, bytes]]:
    """(number, line) without its newline; to bound the memory, a long one is cut into several, or else refused.

    Of a line that is cut, every piece but the last is one document, as `find_cut` says.
    """
    longest = 4 * sentences.MAX_DOCUMENT_CHARS if cut_long_lines else MAX_LINE_BYTES
    pending = b""
    number = 1
    while chunk := stream.read():
        lines = (pending + chunk).split(b"\n")
        pending = lines.pop()
        yield from enumerate(lines, start=number)
        number += len(lines)
        while len(pending) > longest:
            if not cut_long_lines:
                raise InputError(
                    f"{stream.path}:{number} is a line of more than {MAX_LINE_BYTES >> 20} MiB;"
                    " expected one record per line"
                )
            text = pending[:longest].decode("utf-8", "surrogateescape")
            place = len(text[: sentences.find_cut(text)].encode("utf-8", "surrogateescape"))
            yield number, pending[:place]
            pending = pending[place:]
    if pending:
        yield number, pending
