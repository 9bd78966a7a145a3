"""Sources and prepared shards in a store give what files on a disk give."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from tests.object_store import ObjectStore

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import PreparedShards, find_prepared
from maskwright.errors import InputError
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.sections.data import build_sources
from maskwright.stores import objects as stores
from maskwright.stores.addresses import StoreUrl
from maskwright.text.sources import fingerprint, read_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer

TEXTS = [f"the {word} stands in the garden number {number}" for number in range(40) for word in ("lamp", "stone")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("\n".join(TEXTS[:20]), encoding="utf-8")
    (folder / "b.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[20:40]).encode())
    )
    parquet.write_table(pyarrow.table({"text": TEXTS[40:60], "other": TEXTS[:20]}), folder / "deep" / "c.parquet")
    (folder / "deep" / "d.csv").write_text("text\n" + "\n".join(TEXTS[60:]), encoding="utf-8")
    (folder / ".hidden.txt").write_text("hidden", encoding="utf-8")
    (folder / "notes.pdf").write_bytes(b"%PDF")
    return folder


def upload(folder: Path, url: StoreUrl) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            stores.upload_file(file, url / file.relative_to(folder).as_posix())


@pytest.mark.parametrize("pattern", ["", "/a.txt", "/*", "/**/*.parquet", "/deep/*.csv", "/[ab].*"])
def test_a_store_is_read_as_a_disk(object_store: ObjectStore, url: StoreUrl, files: Path, pattern: str) -> None:
    upload(files, url)
    assert list(read_sources(f"{url}{pattern}")) == list(read_sources(f"{files}{pattern}"))


def test_reading_survives_failures(object_store: ObjectStore, url: StoreUrl, files: Path) -> None:
    upload(files, url)
    object_store.faults.waiting += ["500", "500"]
    texts = read_sources(f"{url}/**/[abc].*")
    first = next(texts)
    object_store.faults.waiting += ["500", "cut", "500"]
    assert [first, *texts] == list(read_sources(f"{files}/**/[abc].*"))
    assert not object_store.faults.waiting


def test_the_fingerprint_is_the_content_not_the_time(url: StoreUrl, files: Path) -> None:
    upload(files, url)
    first = fingerprint(f"{url}/*.txt")
    assert [one["path"] for one in first] == [f"{url}/a.txt"]
    assert first[0]["size"] == (files / "a.txt").stat().st_size
    upload(files, url)
    assert fingerprint(f"{url}/*.txt") == first
    stores.write_object(url / "a.txt", b"other")
    assert fingerprint(f"{url}/*.txt") != first


def test_what_is_not_there_is_said(object_store: ObjectStore, url: StoreUrl) -> None:
    with pytest.raises(InputError, match="there is no object at"):
        list(read_sources(f"{url}/*.txt"))
    stores.write_object(url / "a.pdf", b"")
    with pytest.raises(InputError, match="there is no object that can be read"):
        list(read_sources(str(url)))
    with pytest.raises(InputError, match=r"a\.pdf has an unknown suffix"):
        list(read_sources(f"{url}/a.pdf"))


@pytest.fixture
def prepared(files: Path, tmp_path: Path, tokenizer: Tokenizer) -> Path:
    options = PrepareOptions(validation_share=0.2, part_chars=300)
    prepare(build_sources(f"{files}/*.txt"), tokenizer, tmp_path / "prepared", options, num_workers=1)
    return tmp_path / "prepared"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def batches(folder: Path, start_batch: int = 0) -> list[np.ndarray]:
    loader = PackedLoader(
        PreparedShards(folder, "train"), cls_token_id=2, sep_token_id=3, pad_token_id=0, row_length=16, rows_per_batch=2
    )
    return [batch.input_ids.numpy() for batch in loader.epoch(3, start_batch)]


def shard_bytes(cache: Path) -> int:
    return sum(file.stat().st_size for file in cache.rglob("*") if file.suffix in (".ids", ".lengths", ".words"))


def test_stored_shards_give_the_same_batches_from_any_place(
    object_store: ObjectStore, url: StoreUrl, prepared: Path, cache: Path
) -> None:
    upload(prepared, url)
    folder = find_prepared(str(url))
    assert folder is not None
    assert folder.is_relative_to(cache)
    object_store.faults.waiting += ["500", "cut", "500"]
    for start_batch in (0, 3):
        expected, found = batches(prepared, start_batch), batches(folder, start_batch)
        assert len(expected) == len(found) > 2
        assert all(map(np.array_equal, expected, found))
    assert not object_store.faults.waiting


def test_the_cache_stays_within_its_size(url: StoreUrl, prepared: Path, cache: Path) -> None:
    upload(prepared, url)
    largest = max(info.num_bytes for info in PreparedShards(prepared, "train").infos)
    folder = find_prepared(str(url), cache_gb=1.5 * largest / 1e9)
    shards = PreparedShards(folder, "train")
    assert shards.num_shards > 2
    for shard in range(shards.num_shards):
        shards.store(shard)
        assert shard_bytes(cache) <= 1.5 * largest


def test_a_damaged_copy_is_fetched_again_and_a_damaged_original_refused(
    url: StoreUrl, prepared: Path, cache: Path
) -> None:
    upload(prepared, url)
    folder = find_prepared(str(url))
    PreparedShards(folder, "train").store(0)
    (copy,) = folder.glob("train/000-00000.ids")
    good = copy.read_bytes()
    copy.write_bytes(bytes(len(good)))
    assert PreparedShards(folder, "train").store(0).ids.tobytes() == good
    stores.write_object(url / "train/000-00001.ids", b"short")
    with pytest.raises(InputError, match="has 5 bytes"):
        PreparedShards(folder, "train").store(1)


@pytest.mark.slow
def test_another_preparation_at_the_address_replaces_the_copies(
    url: StoreUrl, prepared: Path, cache: Path, tokenizer: Tokenizer, tmp_path: Path, files: Path
) -> None:
    upload(prepared, url)
    first = find_prepared(str(url))
    PreparedShards(first, "train").store(0)
    other = tmp_path / "other"
    prepare(build_sources(f"{files}/*.txt"), tokenizer, other, PrepareOptions(validation_share=0), num_workers=1)
    upload(other, url)
    second = find_prepared(str(url))
    assert second == first
    assert all(map(np.array_equal, batches(second), batches(other)))


def test_a_manifest_cannot_name_files_elsewhere(url: StoreUrl, prepared: Path, cache: Path) -> None:
    upload(prepared, url)
    manifest = json.loads((prepared / "manifest.json").read_text())
    manifest["splits"]["train"][0]["name"] = "../../../escaped"
    stores.write_object(url / "manifest.json", json.dumps(manifest).encode())
    with pytest.raises(InputError, match="its manifest names a shard"):
        PreparedShards(find_prepared(str(url)), "train").store(0)


def test_a_folder_without_a_manifest_is_a_source(url: StoreUrl, files: Path, cache: Path) -> None:
    upload(files, url)
    assert find_prepared(str(url)) is None
    assert find_prepared(f"{url}/*.txt") is None
    assert not os.path.exists(cache)
