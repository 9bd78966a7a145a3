"""Objects in stores: listed, read, fetched, written and deleted.

What fails, stalls or comes back short is tried again at its place, with growing pauses (`stores/requests.py`).
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from maskwright.errors import InputError, RunError
from maskwright.stores.addresses import StoreUrl
from maskwright.stores.requests import FIRST_ATTEMPTS, open_hub, open_system, retry

BUFFER_BYTES = 8 << 20
"""Of one request of a stream."""
_VERSION_THREADS = 16


@dataclass(frozen=True)
class StoredObject:
    url: StoreUrl
    size: int


def list_objects(url: StoreUrl) -> list[StoredObject]:
    """The object of this name, or all below it, sorted by name; none if there are none."""
    from pyarrow import fs

    def ask() -> list[StoredObject]:
        system = open_system(url)
        (info,) = system.get_file_info([url.key])
        found = [info]
        if info.type != fs.FileType.File:
            found = system.get_file_info(fs.FileSelector(url.key, recursive=True, allow_not_found=True))
        names = [(one.path, one.size) for one in found if one.type == fs.FileType.File]
        return [StoredObject(StoreUrl(f"{url.scheme}://{name}"), int(size)) for name, size in sorted(names)]

    return retry(ask, url, "listed", FIRST_ATTEMPTS)


def list_names(url: StoreUrl) -> dict[str, int]:
    """The objects below an address by their names after it, with their sizes.

    Names that would lead out of a folder are left out.
    """
    start = len(url.key) + 1
    found = {stored.url.key[start:]: stored.size for stored in list_objects(url)}
    return {name: size for name, size in found.items() if name and _stays_inside(name)}


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name)


def measure_object(url: StoreUrl) -> int | None:
    """The size in bytes; None if there is no such object."""
    from pyarrow import fs

    def ask() -> int | None:
        (info,) = open_system(url).get_file_info([url.key])
        return int(info.size) if info.type == fs.FileType.File else None

    return retry(ask, url, "found", FIRST_ATTEMPTS)


def read_versions(urls: Sequence[StoreUrl]) -> list[str]:
    """What changes when an object does: the store's own tag, or the time and size where it has none."""
    with ThreadPoolExecutor(_VERSION_THREADS) as pool:
        return list(pool.map(_read_version, urls))


def _read_version(url: StoreUrl) -> str:
    def ask() -> str:
        if url.scheme == "hf":
            info = open_hub().info(url.key)
            return str((info.get("lfs") or {}).get("sha256") or info["blob_id"])
        system = open_system(url)
        with system.open_input_stream(url.key, compression=None) as stream:
            tags = {str(key).lower(): value for key, value in (stream.metadata() or {}).items()}
        if tag := tags.get("md5hash") or tags.get("etag"):  # Google's ETag changes with the time
            return str(tag.decode() if isinstance(tag, bytes) else tag).strip('"')
        (info,) = system.get_file_info([url.key])
        return f"{info.mtime_ns}-{info.size}"

    return retry(ask, url, "read")


def open_object(url: StoreUrl, buffer_bytes: int = BUFFER_BYTES) -> io.BufferedReader:
    """The object for reading and seeking; each request asks for `buffer_bytes`."""
    size = measure_object(url)
    if size is None:
        raise InputError(f"no object at {url}")
    return io.BufferedReader(_RangeReader(url, size), buffer_bytes)


def read_object(url: StoreUrl) -> bytes:
    with open_object(url) as file:
        return file.read()


class _RangeReader(io.RawIOBase):
    """An object by ranges of its bytes; one that fails or comes back short is asked for again."""

    def __init__(self, url: StoreUrl, size: int) -> None:
        super().__init__()
        self._url, self._size = url, size
        self._position = 0
        self._file: Any = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._read(BUFFER_BYTES), b""))

    def _read(self, size: int) -> bytes:
        size = max(0, min(size, self._size - self._position))
        if not size:
            return b""
        data = retry(lambda: self._fetch(size), self._url, f"read after {self._position:,} of {self._size:,} bytes")
        self._position += size
        return data

    def _fetch(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = open_system(self._url).open_input_file(self._url.key)
            if self._file.size() != self._size:
                raise RunError(f"{self._url} was replaced while it was read; run the same command again")
            data = bytes(self._file.read_at(size, self._position))
            if len(data) != size:
                raise OSError(f"{len(data):,} bytes came of the {size:,} that were asked for")
            return data
        except ValueError as error:  # a file of Google's store that a failure has closed
            self._file = None
            raise OSError(str(error)) from error
        except OSError:
            self._file = None
            raise


def measure_file(file: IO[bytes]) -> int:
    """The size of an open file, or object; its position stays."""
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return size


def fetch_object(url: StoreUrl, target: Path) -> None:
    """A whole object as a file; the caller gives a name that does not count yet."""
    with open_object(url) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, BUFFER_BYTES)


def find_cache_folder() -> Path:
    """Where fetched objects are kept: `MASKWRIGHT_CACHE`, or a folder in the user's own cache."""
    if named := os.environ.get("MASKWRIGHT_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskwright"


def upload_file(source: Path, url: StoreUrl) -> None:
    """Write a file as an object. What an interrupted upload leaves may be a part: upload last what makes it count."""

    with source.open("rb") as file:  # which stays what it is when another takes its name

        def upload() -> None:
            file.seek(0)
            with _open_output(url) as copy:
                shutil.copyfileobj(file, copy, BUFFER_BYTES)

        retry(upload, url, "written")


def write_object(url: StoreUrl, content: bytes) -> None:
    def write() -> None:
        with _open_output(url) as file:
            file.write(content)

    retry(write, url, "written")


def delete_objects(urls: Sequence[StoreUrl]) -> None:
    """Delete objects in this order; those that are gone already are no error."""

    def delete(url: StoreUrl) -> None:
        try:
            open_system(url).delete_file(url.key)
        except FileNotFoundError:
            return

    for url in urls:
        retry(lambda url=url: delete(url), url, "deleted")  # type: ignore[misc]


def delete_folder(url: StoreUrl) -> None:
    """Delete all that is below an address, if anything is."""
    if url.scheme == "gs":  # pyarrow then asks for an object of the folder itself, which nobody made
        delete_objects([stored.url for stored in list_objects(url)])
        return

    def delete() -> None:
        try:
            open_system(url).delete_dir(url.key)
        except FileNotFoundError:
            return

    retry(delete, url, "deleted")


def check_writable(url: StoreUrl) -> None:
    """Refuse, before any work, a place to which nothing can be written."""
    probe = url / f".maskwright-{os.getpid()}"
    write_object(probe, b"")
    delete_objects([probe])


def _open_output(url: StoreUrl) -> Any:
    if url.scheme == "hf":
        raise InputError(f"{url} can be read, not written; write to s3://, gs:// or a path")
    system = open_system(url)
    if url.scheme == "file":
        system.create_dir(str(PurePosixPath(url.key).parent), recursive=True)
    return system.open_output_stream(url.key, compression=None)  # not by its suffix
