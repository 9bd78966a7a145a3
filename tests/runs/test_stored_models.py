"""Models by URL: read from a store as from a disk, each version once, and never from a half-written run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.object_store import ObjectStore

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.models.files import stored_model
from maskwright.models.files.model_folder import read_weights, resolve_folder
from maskwright.runs.pretrain import pretrain
from maskwright.stores import objects as stores
from maskwright.stores.addresses import StoreUrl

Command = Callable[..., Any]


def upload(folder: Path, url: StoreUrl) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            stores.upload_file(file, url / file.relative_to(folder).as_posix())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def stored_run(url: StoreUrl, trained_run: Path, cache: Path) -> StoreUrl:
    upload(trained_run, url)
    return url


def test_a_run_a_checkpoint_and_a_model_folder_are_found(stored_run: StoreUrl, trained_run: Path) -> None:
    for name, local in (
        ("", trained_run / "model"),
        ("/model/", trained_run / "model"),
        ("/checkpoints/step-10", trained_run / "checkpoints" / "step-10" / "model"),
    ):
        expected, found = read_weights(local), read_weights(resolve_folder(f"{stored_run}{name}"))
        assert expected.keys() == found.keys()
        assert all(expected[key].equal(found[key]) for key in expected)


def test_an_unfinished_run_gives_its_newest_whole_checkpoint(stored_run: StoreUrl) -> None:
    stores.delete_objects([stored_run / "final.json", stored_run / "checkpoints/step-12/checksums.json"])
    assert resolve_folder(str(stored_run)).parent.name == "step-10"
    stores.delete_objects([stored_run / "checkpoints/step-10/checksums.json"])
    with pytest.raises(InputError, match=f"there is no model at {stored_run}; expected a run, a checkpoint"):
        resolve_folder(str(stored_run))


def test_each_version_is_fetched_once(
    stored_run: StoreUrl, cache: Path, object_store: ObjectStore, capsys: pytest.CaptureFixture[str]
) -> None:
    object_store.faults.waiting += ["500", "cut", "500"]
    first = resolve_folder(str(stored_run))
    assert not object_store.faults.waiting
    assert capsys.readouterr().err.count(f"fetching {stored_run}") == 1
    assert resolve_folder(str(stored_run)) == first
    assert capsys.readouterr().err == ""
    assert not list(cache.rglob("optimizer.safetensors"))
    for number in range(3):
        stores.write_object(stored_run / "final.json", json.dumps({"steps": number}).encode())
        assert resolve_folder(str(stored_run)) != first
    assert len(list(cache.glob("*/*"))) == stored_model._NUM_KEPT


def test_a_fetch_that_is_broken_off_leaves_nothing(
    stored_run: StoreUrl, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = stored_model.fetch_object

    def break_off(url: StoreUrl, target: Path) -> None:
        if url.name == "model.safetensors":
            raise KeyboardInterrupt
        original(url, target)

    with monkeypatch.context() as patch:
        patch.setattr(stored_model, "fetch_object", break_off)
        with pytest.raises(KeyboardInterrupt):
            resolve_folder(str(stored_run))
    assert not list(cache.glob("*/*"))
    assert read_weights(resolve_folder(str(stored_run)))


def test_commands_take_a_model_by_its_url(
    stored_run: StoreUrl, trained_run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["the cat sees the green house", "a small dog follows a long road"]
    outs = [command("predict", "embed", model, *texts).out for model in (trained_run, stored_run)]
    assert outs[0] == outs[1] != ""
    held_out = tmp_path / "texts.txt"
    held_out.write_text("the cat sees the green house\n" * 20)
    reports = [json.loads(command("eval", model, "mlm", held_out, "--json").out) for model in (trained_run, stored_run)]
    for report in reports:
        report.pop("model")
    assert reports[0] == reports[1]
    labelled = tmp_path / "labelled.csv"
    labelled.write_text("text,label\n" + "the cat sees it,good\na small dog follows,bad\n" * 10)
    settings = ("--epochs", "1", "--out", tmp_path / "task", "training.device=cpu")
    tuned = command(
        "finetune", "classification", "--model", stored_run, "--train", labelled, "--validation", labelled, *settings
    )
    assert tuned.code == 0, tuned
    assert str(stored_run) in (tmp_path / "task" / "task.yaml").read_text()
    exported = command("export", stored_run, "--text", tmp_path / "texts.txt")
    assert exported.code == 0, exported
    assert (tmp_path / f"{stored_run.name}-hf" / "model.safetensors").is_file()


def test_training_begins_with_a_model_in_a_store(
    stored_run: StoreUrl, trained_run: Path, tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    weights = []
    for name, model in (("local", str(trained_run)), ("stored", str(stored_run))):
        values = {**tiny_values, "run": {"name": name, "out": str(tmp_path)}, "model": {"from": model}}
        values["training"] = {**values["training"], "keep_optimizer": True, "max_steps": 3, "precision": "fp32"}
        folder = pretrain(build_config(values), console=Console(quiet=True)).folder
        weights.append((folder.model / "model.safetensors").read_bytes())
        shutil.rmtree(folder.checkpoints)
    assert weights[0] == weights[1]


def test_what_is_no_model_is_refused(command: Command, url: StoreUrl, cache: Path) -> None:
    command("predict", "embed", str(url), "a text").assert_refused(f"there is no model at {url}")
    refused = command("predict", "embed", "s3://key:hidden@bucket/run", "a text")
    refused.assert_refused("carries options or credentials")
    assert "hidden" not in refused.err
    command("predict", "embed", "https://example.org/run", "a text").assert_refused("unknown scheme, https://")
