"""Objects in a store, by the protocol of S3: read whole through failures, and refused in one sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from tests.object_store import SILENCE_S, ObjectStore

from maskwright.errors import InputError, RunError
from maskwright.stores import objects as stores
from maskwright.stores import requests
from maskwright.stores.addresses import StoreUrl, find_place, parse_url


def _random_bytes(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


@pytest.mark.parametrize("fault", ["500", "cut"])
def test_reading_goes_on_at_its_place_after_a_failure(object_store: ObjectStore, url: StoreUrl, fault: str) -> None:
    content = _random_bytes(300_000)
    stores.write_object(url, content)
    with stores.open_object(url, 100_000) as file:
        first = file.read(100_000)
        object_store.faults.waiting += [fault, fault]
        assert first + file.read() == content
    assert not object_store.faults.waiting


@pytest.mark.slow
def test_a_stalled_answer_is_asked_for_again(object_store: ObjectStore, url: StoreUrl) -> None:
    content = _random_bytes(50_000)
    stores.write_object(url, content)
    object_store.faults.waiting += ["stall"]
    assert stores.read_object(url) == content


@pytest.mark.parametrize("method", ["POST", pytest.param("PUT", marks=pytest.mark.slow)])
def test_an_upload_that_the_server_leaves_without_an_answer_is_tried_again(
    object_store: ObjectStore, url: StoreUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    file, content = tmp_path / "file", _random_bytes(50_000)
    file.write_bytes(content)
    monkeypatch.setattr(object_store.faults, "only", method)
    object_store.faults.waiting += ["silence"]
    stores.upload_file(file, url)
    assert not object_store.faults.waiting
    assert stores.read_object(url) == content


def test_a_server_that_stays_silent_is_told_in_one_sentence_after_a_bounded_time(
    object_store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests.retry, "__defaults__", (2,))
    monkeypatch.setattr(object_store.faults, "only", "POST")
    monkeypatch.setattr(object_store.faults, "waiting", ["silence"] * 9)
    begun_s = time.monotonic()
    with pytest.raises(RunError, match=rf"{url} cannot be written, tried 2 times: .*Timeout was reached"):
        stores.write_object(url, b"content")
    assert SILENCE_S < time.monotonic() - begun_s < 60.0
    assert len(object_store.faults.waiting) == 7


def test_places_are_sought_without_reading_what_is_before(object_store: ObjectStore, url: StoreUrl) -> None:
    content = _random_bytes(100_000)
    stores.write_object(url, content)
    before = object_store.faults.num_requests
    with stores.open_object(url, 1000) as file:
        file.seek(90_000)
        assert file.read(500) == content[90_000:90_500]
        assert stores.measure_file(file) == len(content)
        assert file.tell() == 90_500
    assert object_store.faults.num_requests - before < 5


def test_failures_without_end_are_told_with_the_number_of_attempts(
    object_store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write_object(url, b"content")
    with stores.open_object(url) as file:
        monkeypatch.setattr(object_store.faults, "waiting", ["500"] * 1000)
        with pytest.raises(RunError, match=r"cannot be read after 0 of 7 bytes, tried 10 times: .*500"):
            file.read()


def test_a_server_that_comes_back_in_time_costs_nothing(object_store: ObjectStore, url: StoreUrl) -> None:
    stores.write_object(url, b"content")
    with stores.open_object(url) as file:
        object_store.stop()
        pauses = []

        def come_back(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                object_store.start()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests.time, "sleep", come_back)
            assert file.read() == b"content"
    assert len(pauses) >= 3


def test_an_object_that_is_replaced_while_it_is_read_is_not_mixed(url: StoreUrl) -> None:
    stores.write_object(url, b"x" * 100)
    with stores.open_object(url, 10) as file:
        file.read(10)
        stores.write_object(url, b"y" * 50)
        file.raw._file = None  # as after a failure
        with pytest.raises(RunError, match="was replaced while it was read"):
            file.read()


def test_a_write_that_fails_is_done_again(
    object_store: ObjectStore, url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store.faults, "only", "PUT")
    object_store.faults.waiting += ["500", "500"]
    stores.write_object(url, b"content")
    assert not object_store.faults.waiting
    assert stores.read_object(url) == b"content"


def test_files_go_and_come_whole(url: StoreUrl, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_random_bytes(1000))
    stores.upload_file(tmp_path / "a", url)
    stores.fetch_object(url, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    stores.delete_objects([url, url])
    assert stores.measure_object(url) is None


def test_the_version_changes_with_the_content(url: StoreUrl) -> None:
    stores.write_object(url, b"one")
    (one,) = stores.read_versions([url])
    stores.write_object(url, b"two")
    (two,) = stores.read_versions([url])
    stores.write_object(url, b"one")
    assert stores.read_versions([url]) == [one]
    assert one != two


def test_nothing_is_found_where_nothing_is(url: StoreUrl) -> None:
    assert stores.list_objects(url) == []
    with pytest.raises(InputError, match="no object at"):
        stores.open_object(url)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://example.org/a.txt", "unknown scheme, https://; expected s3://, gs://, hf://, file:// or a path"),
        ("s3://key:secret@bucket/a.txt", "the address of s3://bucket/a.txt carries options or credentials"),
        ("s3://bucket/a.txt?secret_key=secret", "the address of s3://bucket/a.txt carries options or credentials"),
        ("s3://", "names no bucket"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused_without_their_secrets(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as found:
        parse_url(text)
    assert "secret@" not in str(found.value)
    assert "=secret" not in str(found.value)


def test_hubs_are_not_written_to() -> None:
    with pytest.raises(InputError, match="can be read, not written"):
        stores.write_object(StoreUrl("hf://datasets/someone/texts/a.txt"), b"")


@pytest.mark.parametrize("key", ["../a", "a/../../b", "/etc/a", "a\\..\\b", "C:a"])
def test_names_that_lead_out_of_a_folder_are_left_out(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    place = StoreUrl("s3://bucket/run")
    found = [stores.StoredObject(StoreUrl(f"s3://bucket/run/{name}"), 1) for name in (key, "model/config.json")]
    monkeypatch.setattr(stores, "list_objects", lambda url: found)
    assert stores.list_names(place) == {"model/config.json": 1}


def test_file_urls_are_paths(tmp_path: Path) -> None:
    assert find_place(f"file://{tmp_path}/a%20b.txt") == tmp_path / "a b.txt"
    assert find_place("corpus/a.txt") == Path("corpus/a.txt")


def test_what_a_file_system_of_a_disk_holds_is_listed_as_in_a_store(tmp_path: Path) -> None:
    url = StoreUrl(f"file://{tmp_path}/deep")
    stores.write_object(url / "a/b.json", json.dumps({}).encode())
    assert stores.list_objects(url) == [stores.StoredObject(url / "a/b.json", 2)]
