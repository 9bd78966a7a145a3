"""Requests to stores: the file system of each kind, what is tried again, and what a failure means in one sentence.

The file systems are those of pyarrow; `hf://` is huggingface_hub's.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from maskwright.errors import InputError, RunError, cut_message
from maskwright.stores.addresses import CREDENTIALS, StoreUrl

Result = TypeVar("Result")

FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 32.0
SILENCE_S = 20.0
"""Of an S3 server, after which a request counts as failed; it may need some seconds to put a large object together."""
FIRST_ATTEMPTS = 4
"""To find objects: a wrong address is told after seconds."""
_ATTEMPTS = 10
"""Of everything after: two minutes, in which a server can be restarted."""
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


def open_system(url: StoreUrl) -> Any:
    return _build_system(url.scheme, url.key.partition("/")[0] if url.scheme == "s3" else "")


@cache
def _build_system(scheme: str, bucket: str) -> Any:
    try:
        from pyarrow import fs

        if scheme == "file":
            return fs.LocalFileSystem()
        if scheme == "hf":
            return fs.PyFileSystem(fs.FSSpecHandler(open_hub()))
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
def open_hub() -> Any:
    from huggingface_hub import HfFileSystem

    return HfFileSystem()


def retry(operation: Callable[[], Result], url: StoreUrl, act: str, attempts: int = _ATTEMPTS) -> Result:
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
                    f" environment ({CREDENTIALS[url.scheme]})"
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
