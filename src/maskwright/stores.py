"""Objects in stores by URL, such as `s3://bucket/corpus/a.jsonl`: listed, read, fetched and written, with retries.

The file systems are those of pyarrow; `hf://` is huggingface_hub's. What fails, stalls or comes back short is tried
again at its place, with growing pauses. Credentials come from the environment alone, as the tools of each store look
for them, and a URL that carries one is refused, so that neither a saved configuration nor a message can hold it.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeGuard, TypeVar
from urllib.parse import unquote, urlsplit

from maskwright.errors import InputError, RunError, cut_message

Result = TypeVar("Result")

SCHEMES = ("s3", "gs", "hf", "file")
BUFFER_BYTES = 8 << 20
"""Of one request of a stream."""
FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 32.0
SILENCE_S = 20.0
"""Of an S3 server, after which a request counts as failed; it may need some seconds to put a large object together."""
_FIRST_ATTEMPTS = 4
"""To find objects: a wrong address is told after seconds."""
_ATTEMPTS = 10
"""Of everything after: two minutes, in which a server can be restarted."""
_VERSION_THREADS = 16
_HOPELESS = (
    "ACCESS_DENIED",
    "BUCKET",  # NO_SUCH_BUCKET, INVALID_BUCKET_NAME
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "HTTP status 400",
    "HTTP status 401",
    "HTTP status 403",
    "HTTP status 404",
    "Client error '40",  # of huggingface_hub
    "OAuth2 access token",  # of Google, for credentials that are missing or wrong
)
_GOOGLE_RETRY_S = 5.0
"""In which pyarrow tries a request to Google again by itself; 15 minutes if it is not told."""
_GOOGLE_STATUS = re.compile(r".*with a last message of (.*?)(?: error_info=|$)")
_REASON_CHARS = 600
"""Of what a store answers; Google's library tells the cause after 300."""
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile, AWS_REGION, AWS_ENDPOINT_URL for other servers",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST for other servers",
    "hf": "HF_TOKEN",
    "file": "the rights of the user",
}


@dataclass(frozen=True, order=True)
class StoreUrl:
    """The address of an object, or of all that begins with it."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StoreUrl:
        return StoreUrl(f"{self.url.rstrip('/')}/{name}")

    def as_posix(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def key(self) -> str:
        """As its file system calls it: the bucket and what follows it."""
        path = self.url.partition("://")[2].rstrip("/")
        return unquote(path) if self.scheme == "file" else path

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    def with_suffix(self, suffix: str) -> StoreUrl:
        return StoreUrl(self.url[: len(self.url) - len(self.suffix)] + suffix)


Place = Path | StoreUrl
"""A file on a disk, or an object in a store."""


@dataclass(frozen=True)
class StoredObject:
    url: StoreUrl
    size: int


def is_store_url(path: object) -> TypeGuard[str]:
    return isinstance(path, str) and "://" in path.partition("{")[0]


def parse_url(text: str) -> StoreUrl:
    """A URL of a known scheme without credentials, or an `InputError`."""
    scheme = text.partition("://")[0]
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise InputError(f"'{text}' has an unknown scheme, {scheme}://; expected {known} or a path")
    parts = urlsplit(text)
    if scheme != "hf" and ("@" in parts.netloc or "&" in parts.query or "=" in parts.query):
        raise InputError(
            f"the address of {scheme}://{parts.hostname}{parts.path} carries options or credentials; give the address"
            f" alone, and the rest in the environment ({_CREDENTIALS[scheme]})"
        )
    url = StoreUrl(text)
    if not url.key.strip("/"):
        raise InputError(f"'{text}' names no bucket; expected {scheme}://BUCKET/KEY")
    return url


def parse_store(text: str) -> StoreUrl:
    """The address of a place that can be written to, or an `InputError`."""
    url = parse_url(text)
    if url.scheme == "hf":
        raise InputError(f"{url} can be read, not written; expected s3://, gs:// or file://")
    return url


def find_place(text: str) -> Place:
    """A path for `file://` and for paths, the object's address for stores."""
    if not is_store_url(text):
        return Path(text).expanduser()
    url = parse_url(text)
    return Path(url.key) if url.scheme == "file" else url


def find_cache_folder() -> Path:
    """`MASKWRIGHT_CACHE`, or a folder in the user's own cache."""
    if named := os.environ.get("MASKWRIGHT_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maskwright"


def list_objects(url: StoreUrl) -> list[StoredObject]:
    """The object of this name, or all below it, sorted by name; none if there are none."""
    from pyarrow import fs

    def ask() -> list[StoredObject]:
        system = _open_system(url)
        (info,) = system.get_file_info([url.key])
        found = [info]
        if info.type != fs.FileType.File:
            found = system.get_file_info(fs.FileSelector(url.key, recursive=True, allow_not_found=True))
        names = [(one.path, one.size) for one in found if one.type == fs.FileType.File]
        return [StoredObject(StoreUrl(f"{url.scheme}://{name}"), int(size)) for name, size in sorted(names)]

    return _retry(ask, url, "listed", _FIRST_ATTEMPTS)


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
        (info,) = _open_system(url).get_file_info([url.key])
        return int(info.size) if info.type == fs.FileType.File else None

    return _retry(ask, url, "found", _FIRST_ATTEMPTS)


def read_versions(urls: Sequence[StoreUrl]) -> list[str]:
    """What changes when an object does: the store's own tag, or the time and size where it has none."""
    with ThreadPoolExecutor(_VERSION_THREADS) as pool:
        return list(pool.map(_read_version, urls))


def _read_version(url: StoreUrl) -> str:
    def ask() -> str:
        if url.scheme == "hf":
            info = _open_hub().info(url.key)
            return str((info.get("lfs") or {}).get("sha256") or info["blob_id"])
        system = _open_system(url)
        with system.open_input_stream(url.key, compression=None) as stream:
            tags = {str(key).lower(): value for key, value in (stream.metadata() or {}).items()}
        if tag := tags.get("md5hash") or tags.get("etag"):  # Google's ETag changes with the time
            return str(tag.decode() if isinstance(tag, bytes) else tag).strip('"')
        (info,) = system.get_file_info([url.key])
        return f"{info.mtime_ns}-{info.size}"

    return _retry(ask, url, "read")


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
        data = _retry(lambda: self._fetch(size), self._url, f"read after {self._position:,} of {self._size:,} bytes")
        self._position += size
        return data

    def _fetch(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = _open_system(self._url).open_input_file(self._url.key)
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


def upload_file(source: Path, url: StoreUrl) -> None:
    """Write a file as an object. What an interrupted upload leaves may be a part: upload last what makes it count."""

    with source.open("rb") as file:  # which stays what it is when another takes its name

        def upload() -> None:
            file.seek(0)
            with _open_output(url) as copy:
                shutil.copyfileobj(file, copy, BUFFER_BYTES)

        _retry(upload, url, "written")


def write_object(url: StoreUrl, content: bytes) -> None:
    def write() -> None:
        with _open_output(url) as file:
            file.write(content)

    _retry(write, url, "written")


def delete_objects(urls: Sequence[StoreUrl]) -> None:
    """Delete objects in this order; those that are gone already are no error."""

    def delete(url: StoreUrl) -> None:
        try:
            _open_system(url).delete_file(url.key)
        except FileNotFoundError:
            return

    for url in urls:
        _retry(lambda url=url: delete(url), url, "deleted")  # type: ignore[misc]


def delete_folder(url: StoreUrl) -> None:
    """Delete all that is below an address, if anything is."""
    if url.scheme == "gs":  # pyarrow then asks for an object of the folder itself, which nobody made
        delete_objects([stored.url for stored in list_objects(url)])
        return

    def delete() -> None:
        try:
            _open_system(url).delete_dir(url.key)
        except FileNotFoundError:
            return

    _retry(delete, url, "deleted")


def check_writable(url: StoreUrl) -> None:
    """Refuse, before any work, a place to which nothing can be written."""
    probe = url / f".maskwright-{os.getpid()}"
    write_object(probe, b"")
    delete_objects([probe])


def _open_output(url: StoreUrl) -> Any:
    if url.scheme == "hf":
        raise InputError(f"{url} can be read, not written; write to s3://, gs:// or a path")
    system = _open_system(url)
    if url.scheme == "file":
        system.create_dir(str(PurePosixPath(url.key).parent), recursive=True)
    return system.open_output_stream(url.key, compression=None)  # not by its suffix


def _open_system(url: StoreUrl) -> Any:
    return _build_system(url.scheme, url.key.partition("/")[0] if url.scheme == "s3" else "")


@cache
def _build_system(scheme: str, bucket: str) -> Any:
    try:
        from pyarrow import fs

        if scheme == "file":
            return fs.LocalFileSystem()
        if scheme == "hf":
            return fs.PyFileSystem(fs.FSSpecHandler(_open_hub()))
        if scheme == "gs":
            return _build_google(fs)
        return _build_s3(fs, bucket)
    except (ImportError, AttributeError) as error:
        raise InputError(f"this build of pyarrow cannot read {scheme}://: {error}; install pyarrow's wheel") from error


def _build_s3(fs: Any, bucket: str) -> Any:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options: dict[str, Any] = {
        "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1),
        "connect_timeout": SILENCE_S,
        "request_timeout": SILENCE_S,
    }
    if endpoint:
        parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    elif region is None:
        region = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(region=region or "us-east-1", **options)


def _build_google(fs: Any) -> Any:
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=_GOOGLE_RETRY_S)}
    if endpoint := os.environ.get("STORAGE_EMULATOR_HOST"):
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme, "anonymous": True}
    return fs.GcsFileSystem(**options)


@cache
def _open_hub() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def _retry(operation: Callable[[], Result], url: StoreUrl, act: str, attempts: int = _ATTEMPTS) -> Result:
    """The operation's result; an `InputError` for what waiting does not heal, a `RunError` after the last attempt."""
    for pause in (*_list_pauses(attempts - 1), None):
        try:
            return operation()
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise InputError(f"{url} cannot be {act}: {_describe(error)}") from error
        except _list_failures(url) as error:
            if any(word in str(error) for word in _HOPELESS):
                raise InputError(
                    f"{url} cannot be {act}: {_describe(error)}; check the address, and the credentials in the"
                    f" environment ({_CREDENTIALS[url.scheme]})"
                ) from error
            if pause is None:
                raise RunError(
                    f"{url} cannot be {act}, tried {attempts} times: {_describe(error)}; the same command goes on when"
                    " the store answers again"
                ) from error
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _list_failures(url: StoreUrl) -> tuple[type[Exception], ...]:
    """What pyarrow raises, and for `hf://` what huggingface_hub and the HTTP client below it do."""
    from pyarrow import ArrowException

    if url.scheme != "hf":
        return OSError, ArrowException
    from huggingface_hub.errors import HfHubHTTPError

    return OSError, ArrowException, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))


def _list_pauses(count: int) -> Iterator[float]:
    return (min(FIRST_PAUSE_S * 2**number, _LONGEST_PAUSE_S) for number in range(count))


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    if found := _GOOGLE_STATUS.match(text):
        text = found[1]
    return cut_message(text, _REASON_CHARS) or type(error).__name__
