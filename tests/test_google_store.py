"""Objects by the protocol of Google Cloud Storage: read, written and resumed as by that of S3."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.google_store import BUCKET, GoogleStore, serving_google

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.callbacks import PeriodicCheckpoints
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.runs.pretrain import pretrain
from maskwright.sections.data import build_sources
from maskwright.stores import objects as stores
from maskwright.stores import requests
from maskwright.stores.addresses import StoreUrl
from maskwright.text.sources import fingerprint, read_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer


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


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


@pytest.mark.slow
def test_training_on_stored_shards_goes_on_bit_equal_after_a_kill(
    google: GoogleStore,
    url: StoreUrl,
    tiny_values: dict[str, Any],
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    shards, options = tmp_path / "shards", PrepareOptions(validation_share=0.2, part_chars=500)
    prepare(build_sources(tiny_values["data"]["train"]), tokenizer, shards, options, num_workers=1)
    for file in shards.rglob("*"):
        if file.is_file():
            stores.upload_file(file, url / file.relative_to(shards).as_posix())
    changes = {"precision": "fp32", "batch_tokens": 96, "max_steps": 9, "checkpoint_every_steps": 2}
    tiny_values["training"] |= changes

    def train(source: object, name: str) -> bytes:
        tiny_values["run"]["name"], tiny_values["data"]["train"] = name, str(source)
        folder = pretrain(build_config(tiny_values), console=Console(quiet=True)).folder
        return (folder.model / "model.safetensors").read_bytes()

    def die(self: PeriodicCheckpoints, step: int) -> None:
        end_step(self, step)
        if step == 4:
            self.trainer.finish_writing()
            raise KilledError

    expected, end_step = train(shards, "disk"), PeriodicCheckpoints.on_step_end
    google.fail("GET", ["500", "cut", "500"])
    with monkeypatch.context() as patch:
        patch.setattr(PeriodicCheckpoints, "on_step_end", die)
        with pytest.raises(KilledError):
            train(url, "store")
    assert google.list_faults() == []
    shutil.rmtree(tmp_path / "cache")  # as on another machine
    google.fail("GET", ["500", "cut", "500"])
    assert train(url, "store") == expected
    assert google.list_faults() == []
