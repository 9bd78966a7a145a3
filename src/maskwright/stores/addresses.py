"""Addresses of objects in stores, such as `s3://bucket/corpus/a.jsonl`, and of files on a disk beside them.

A URL that carries a credential is refused, so that neither a saved configuration nor a message can hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

from maskwright.errors import InputError

SCHEMES = ("s3", "gs", "hf", "file")
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile, AWS_REGION, AWS_ENDPOINT_URL for other servers",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, STORAGE_EMULATOR_HOST for other servers",
    "hf": "HF_TOKEN",
    "file": "the rights of the user",
}
"""Where the tools of each store look for them; they come from the environment alone."""


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
            f" alone, and the rest in the environment ({CREDENTIALS[scheme]})"
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
