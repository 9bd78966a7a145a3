"""Objects by the protocol of Google Cloud Storage: read, written and resumed as by that of S3."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.google_store import BUCKET, GoogleStore, serving_google

from maskwright.errors import InputError
from maskwright.stores import objects as stores
from maskwright.stores import requests
from maskwright.stores.addresses import StoreUrl
from maskwright.text.sources import fingerprint, read_sources


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleStore]:
    with pytest.MonkeyPatch.context() as patch, serving_google(patch) as store:
        yield store


@pytest.fixture
def url(google: GoogleStore, request: pytest.FixtureRequest) -> StoreUrl:
    return StoreUrl(f"gs://{BUCKET}/{request.node.originalname}-{abs(hash(request.node.nodeid))}")


@pytest.mark.parametrize("fault", [pytest.param("500", marks=pytest.mark.slow), "cut"])
def test_reading_goes_on_at_its_place_after_a_failure(google: GoogleStore, url: StoreUrl, fault: str) -> None:
    content = np.random.default_rng(0).bytes(300_000)
    stores.write_object(url, content)
    with stores.open_object(url, 100_000) as file:
        first = file.read(100_000)
        google.fail("GET", [fault, fault])
        assert first + file.read() == content
        assert google.list_faults() == []
        file.seek(299_990)
        assert file.read() == content[-10:]
    google.fail("GET", ["500"])
    assert stores.read_object(url) == content


@pytest.mark.parametrize("method", [pytest.param("POST", marks=pytest.mark.slow), "PUT"])
def test_an_upload_that_fails_is_done_again(google: GoogleStore, url: StoreUrl, tmp_path: Path, method: str) -> None:
    (tmp_path / "file").write_bytes(content := np.random.default_rng(0).bytes(300_000))
    google.fail(method, ["500"])
    stores.upload_file(tmp_path / "file", url)
    assert google.list_faults() == []
    assert stores.read_object(url) == content


def test_objects_are_listed_and_deleted(url: StoreUrl) -> None:
    for name in ("a/b.txt", "a/c.txt", "d.txt"):
        stores.write_object(url / name, b"")
    assert stores.list_names(url) == {"a/b.txt": 0, "a/c.txt": 0, "d.txt": 0}
    stores.delete_folder(url / "a")
    stores.delete_folder(url / "a")
    stores.delete_objects([url / "d.txt", url / "d.txt"])
    assert stores.list_objects(url) == []
    with pytest.raises(InputError, match="no object at"):
        stores.open_object(url)
    stores.check_writable(url)
    with pytest.raises(InputError, match=r"gs://no-such-bucket/.*cannot be written: Received HTTP status code: 404$"):
        stores.check_writable(StoreUrl("gs://no-such-bucket/runs"))


def test_sources_are_read_as_on_a_disk(url: StoreUrl, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one line\nand another\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "a third"}).encode()))
    for file in tmp_path.iterdir():
        stores.upload_file(file, url / file.name)
    assert list(read_sources(f"{url}/*")) == list(read_sources(f"{tmp_path}/*"))
    before = fingerprint(f"{url}/*")
    stores.upload_file(tmp_path / "a.txt", url / "a.txt")
    assert fingerprint(f"{url}/*") == before
    stores.write_object(url / "a.txt", b"other")
    assert fingerprint(f"{url}/*") != before


def test_missing_credentials_are_told_at_once(
    google: GoogleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nothing.json"))
    requests._build_system.cache_clear()
    try:
        with pytest.raises(InputError, match=r"cannot be listed: .*access token.*; check the address, and the cred"):
            stores.list_objects(StoreUrl(f"gs://{BUCKET}/a"))
    finally:
        requests._build_system.cache_clear()
