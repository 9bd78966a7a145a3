"""Files of the Hugging Face Hub by `hf://`: read as from a disk, and told in one sentence where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.hub_files import REPOSITORY, HubFiles, serving_hub

from maskwright.errors import InputError, RunError
from maskwright.inference.pipeline import pipeline
from maskwright.stores import objects as stores
from maskwright.stores import requests
from maskwright.stores.addresses import StoreUrl
from maskwright.text.sources import fingerprint, read_sources

URL = f"hf://datasets/{REPOSITORY}"
FILES = {"a.txt": b"one line\nand another\n" * 20, "deep/b.jsonl": b'{"text": "a third"}\n', "notes.pdf": b"%PDF"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubFiles]:
    with serving_hub(monkeypatch) as server:
        server.files |= FILES
        yield server


@pytest.mark.parametrize("pattern", ["", "/a.txt", "/**/*.jsonl"])
def test_a_dataset_is_read_as_a_disk(hub: HubFiles, tmp_path: Path, pattern: str) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert list(read_sources(f"{URL}{pattern}")) == list(read_sources(f"{tmp_path}{pattern}"))


@pytest.mark.parametrize("faults", [["cut"], pytest.param(["500", "cut"], marks=pytest.mark.slow)])
def test_reading_goes_on_after_failures(hub: HubFiles, faults: list[str]) -> None:
    hub.faults += faults
    assert stores.read_object(StoreUrl(f"{URL}/a.txt")) == FILES["a.txt"]
    assert not hub.faults


def test_the_fingerprint_is_the_content(hub: HubFiles) -> None:
    before = fingerprint(f"{URL}/a.txt")
    assert before[0]["size"] == len(FILES["a.txt"])
    hub.files["a.txt"] = b"other"
    requests._build_system.cache_clear()
    assert fingerprint(f"{URL}/a.txt") != before


def test_what_is_not_there_is_told_at_once(hub: HubFiles) -> None:
    with pytest.raises(InputError, match="there is no object at hf://datasets/someone/nothing"):
        list(read_sources("hf://datasets/someone/nothing/*.txt"))
    with pytest.raises(InputError, match="there is no object that can be read at"):
        list(read_sources(f"{URL}/*.csv"))


def test_a_hub_that_does_not_answer_is_told(hub: HubFiles) -> None:
    hub.shutdown()
    hub.server_close()
    with pytest.raises(RunError, match=r"cannot be listed, tried 4 times: .*; the same command goes on when the store"):
        stores.list_objects(StoreUrl(f"{URL}/a.txt"))


def test_a_model_is_read_as_from_a_disk(
    hub: HubFiles, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path))
    folder = trained_run / "model"
    hub.files |= {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }
    hub.faults += ["cut"]
    texts = ["the cat sees the green house", "a small dog"]
    found, expected = (pipeline("embed", model, device="cpu")(texts) for model in (f"hf://{REPOSITORY}", folder))
    assert not hub.faults
    assert all(map(np.array_equal, found, expected))
