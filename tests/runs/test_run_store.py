"""Runs in a store: uploaded while they train, resumed from there alone, and never from half of a checkpoint."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.google_store import BUCKET as GOOGLE_BUCKET
from tests.google_store import serving_google
from tests.object_store import ObjectStore

import maskwright as mw
from maskwright.config import build_config
from maskwright.errors import InputError, RunError
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs import upload as upload_module
from maskwright.runs.callbacks import PeriodicCheckpoints
from maskwright.runs.doctor.settings import _check_requirements
from maskwright.runs.folder import RunFolder
from maskwright.runs.pretrain import pretrain
from maskwright.runs.run_store import RunStore, find_whole_steps
from maskwright.stores import objects as stores
from maskwright.stores.addresses import StoreUrl
from maskwright.training.checkpoints import Retention

_TRAINING = {
    "precision": "fp32",
    "batch_tokens": 96,
    "max_steps": 9,
    "checkpoint_every_steps": 2,
    "final_evaluation": False,
}
_TIMED = ("tokens_per_s", "data_wait", "elapsed_s")


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


@pytest.fixture
def settings(tiny_values: dict[str, Any], url: StoreUrl) -> dict[str, Any]:
    tiny_values["run"]["store"] = str(url)
    tiny_values["training"] |= _TRAINING
    return tiny_values


@pytest.fixture
def store(url: StoreUrl) -> RunStore:
    return RunStore(url / "tiny")


@pytest.fixture(scope="module")
def whole(build_tiny_values: Callable[[Path], dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """What an uninterrupted run without a store gives."""
    values = build_tiny_values(tmp_path_factory.mktemp("whole"))
    values["training"] |= _TRAINING
    return run(values)


def run(values: dict[str, Any], overwrite: bool = False, said: list[str] | None = None) -> RunFolder:
    console = Console(quiet=said is None)
    if said is not None:
        console.print = lambda text, **_: said.append(str(text))  # type: ignore[method-assign]
    return pretrain(build_config(values), overwrite, console).folder


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], None] | None = None) -> None:
    """End the process, as it were, after the checkpoint of a step; or do something else then."""
    original = PeriodicCheckpoints.on_step_end

    def dying(self: PeriodicCheckpoints, at: int) -> None:
        original(self, at)
        if at == step:
            self.trainer.finish_writing()
            if act is None:
                raise KilledError
            act()

    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", dying)


def interrupt(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A run that ends at a step, and whose machine is lost."""
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(KilledError):
            run(values)
    shutil.rmtree(values["run"]["out"])


def assert_same(one: RunFolder, other: RunFolder) -> None:
    weights = [(folder.model / "model.safetensors").read_bytes() for folder in (one, other)]
    assert weights[0] == weights[1]
    lines = [
        [{name: value for name, value in line.items() if name not in _TIMED} for line in folder.read_metrics()]
        for folder in (one, other)
    ]
    assert lines[0] == lines[1]


def read_all(url: StoreUrl) -> dict[str, bytes]:
    return {name: stores.read_object(url / name) for name in stores.list_names(url)}


def test_a_finished_run_is_in_its_store_without_any_credentials(settings: dict[str, Any], store: RunStore) -> None:
    said: list[str] = []
    folder = run(settings, said=said)
    files = {
        path.relative_to(folder.path).as_posix(): path.read_bytes()
        for path in folder.path.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    found = read_all(store.url)
    assert found == files
    assert find_whole_steps(found) == [9, 8]
    assert f"{store.url}  the run in its store" in said
    everything = b"".join([*files.values(), "".join(said).encode()])
    assert b"a-key-of-the-tests" not in everything
    assert b"a-secret-of-the-tests" not in everything
    with pytest.raises(InputError, match=r"tiny holds a finished run; choose another run\.name"):
        run(settings)
    shutil.rmtree(folder.path)
    with pytest.raises(InputError, match=f"{store.url} holds a finished run"):
        run(settings)
    assert not folder.path.exists()


def test_a_run_goes_on_from_its_store_alone(
    settings: dict[str, Any], store: RunStore, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings, monkeypatch, 6)
    assert find_whole_steps(stores.list_names(store.url)) == [6, 4]
    said: list[str] = []
    again = run(settings, said=said)
    assert f"fetching step 6 of {store.url}" in said
    assert any("from step 6" in line for line in said)
    assert_same(again, whole)


def test_partial_uploads_never_count(
    settings: dict[str, Any], store: RunStore, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(settings, monkeypatch, 8)
    stores.delete_objects([store.url / "checkpoints/step-8/checksums.json"])
    stores.write_object(store.url / "checkpoints/step-6/model/model.safetensors", b"something else")
    with pytest.raises(InputError, match=f"{store.url} has no whole checkpoint to go on from"):
        run(settings)
    shutil.rmtree(settings["run"]["out"])
    interrupted = copy.deepcopy(settings)
    interrupted["training"]["keep_checkpoints"] = 3
    stores.delete_objects([store.url / name for name in stores.list_names(store.url)])
    interrupt(interrupted, monkeypatch, 8)
    stores.delete_objects([store.url / "checkpoints/step-8/optimizer.safetensors"])
    stores.delete_objects([store.url / "checkpoints/step-6/checksums.json"])
    said: list[str] = []
    again = run(interrupted, said=said)
    assert any("step 8" in line and "falling back to an earlier one" in line for line in said)
    assert any("from step 4" in line for line in said)
    assert_same(again, whole)
    assert find_whole_steps(stores.list_names(store.url)) == [9, 8, 6]


@pytest.mark.parametrize(
    "method",
    ["GET", *(pytest.param(method, marks=pytest.mark.slow) for method in ("PUT", "HEAD", "DELETE"))],
)
def test_failures_of_the_server_change_nothing(
    settings: dict[str, Any],
    store: RunStore,
    whole: RunFolder,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setattr(object_store.faults, "only", method)
    object_store.faults.waiting += ["500", "500"] if method != "GET" else ["500", "cut"]
    interrupt(settings, monkeypatch, 4)
    object_store.faults.waiting += ["500", "cut", "500"] if method == "GET" else ["500"]
    assert_same(run(settings), whole)
    assert not object_store.faults.waiting


def test_a_server_that_is_gone_for_a_while_stops_no_training(
    settings: dict[str, Any],
    store: RunStore,
    whole: RunFolder,
    object_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    is_told = upload_module.threading.Event()

    class Said(list[str]):
        def append(self, text: str) -> None:
            said.append(text)
            if "tried again" in text:
                object_store.start()
                is_told.set()

    monkeypatch.setattr(upload_module, "_LOOK_S", 0.01)
    monkeypatch.setattr(upload_module, "_PAUSE_S", 0.01)

    def wait_for_the_news() -> None:
        assert is_told.wait(60)

    original = PeriodicCheckpoints.on_step_end

    def stop(self: PeriodicCheckpoints, step: int) -> None:
        if step == 4:
            object_store.stop()
        original(self, step)
        if step == 7:
            wait_for_the_news()

    monkeypatch.setattr(PeriodicCheckpoints, "on_step_end", stop)
    folder = run(settings, said=Said())
    assert any("training goes on, and the upload is tried again" in line for line in said)
    assert_same(folder, whole)
    assert read_all(store.url)["model/model.safetensors"] == (whole.model / "model.safetensors").read_bytes()
    assert find_whole_steps(stores.list_names(store.url)) == [9, 8]


def test_what_could_not_be_uploaded_at_the_end_is_told_and_follows(
    settings: dict[str, Any], store: RunStore, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 8, object_store.stop)
        with pytest.raises(RunError, match=r"tiny is finished, but .* lacks a part of it: .*same command uploads"):
            run(settings)
    object_store.start()
    assert not store.is_finished
    said: list[str] = []
    with pytest.raises(InputError, match="holds a finished run"):
        run(settings, said=said)
    assert f"{store.url}  the run in its store" in said
    assert store.is_finished
    assert find_whole_steps(stores.list_names(store.url)) == [9, 8]


def test_another_process_takes_over(settings: dict[str, Any], store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(monkeypatch, 4, store.claim)
    with pytest.raises(RunError, match=rf"{store.url} was taken over by process \d+ on .*uploads no more"):
        run(settings)
    assert not store.is_finished


def test_other_runs_and_foreign_objects_are_refused_and_left(
    settings: dict[str, Any], store: RunStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.write_object(store.url / "notes.txt", b"mine")
    with pytest.raises(InputError, match=r"exists and is not a run; choose another run\.name or run\.store"):
        run(settings)
    stores.delete_objects([store.url / "notes.txt"])
    interrupt(settings, monkeypatch, 2)
    before = stores.list_names(store.url)
    other = copy.deepcopy(settings)
    other["optimizer"]["learning_rate"] = 1e-4
    with pytest.raises(InputError, match=rf"{store.url} is an unfinished run with optimizer\.learning_rate=0\.003"):
        run(other)
    local = RunFolder(tmp_path / "runs" / "tiny")
    local.path.mkdir(parents=True)
    build_config(settings).save(local.config_file)
    local.data_file.write_text(json.dumps({"fingerprint": "that of others"}))
    with pytest.raises(InputError, match=f"{store.url} is a run on other texts or another tokenizer than {local.path}"):
        run(settings)
    assert stores.list_names(store.url) == before


def test_overwriting_replaces_the_run_in_the_store(settings: dict[str, Any], store: RunStore) -> None:
    run(settings)
    stores.write_object(store.url / "notes.txt", b"mine")
    values = copy.deepcopy(settings)
    values["training"]["max_steps"] = 3
    run(values, overwrite=True)
    found = read_all(store.url)
    assert json.loads(found["final.json"])["steps"] == 3
    assert find_whole_steps(found) == [3, 2]
    assert found["notes.txt"] == b"mine"


def test_milestones_and_the_best_stay_and_a_removed_checkpoint_is_uploaded_whole(
    settings: dict[str, Any], store: RunStore, whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "copy")
    shutil.copytree(whole.path, folder.path)
    for step in (2, 4, 6):
        shutil.copytree(folder.checkpoints / "step-8", folder.checkpoints / f"step-{step}")
    (folder.checkpoints / "best.json").write_text(json.dumps({"step": 2, "value": 1.0}))
    removed: list[Path] = []
    original = stores.upload_file

    def upload_and_remove(source: Path, target: StoreUrl) -> None:
        if not removed and "step-8" in str(target):  # as training does
            removed.append(folder.checkpoints / "step-8")
            shutil.rmtree(removed[0])
        original(source, target)

    monkeypatch.setattr("maskwright.runs.run_store.upload_file", upload_and_remove)
    said: list[str] = []
    with upload_module.RunUpload(store, folder, Retention(last=1, every_steps=4), said.append):
        pass
    assert removed
    found = read_all(store.url)
    original_files = (path for path in (whole.checkpoints / "step-8").rglob("*.*"))
    expected = {path.relative_to(whole.path).as_posix(): path.read_bytes() for path in original_files}
    assert {name: content for name, content in found.items() if "step-8/" in name} == expected
    assert find_whole_steps(found) == [9, 8, 4, 2]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("s3://key:secret@bucket/runs", "carries options or credentials"),
        ("s3://bucket/runs?secret_key=secret", "carries options or credentials"),
        ("hf://datasets/someone/runs", "can be read, not written"),
        ("runs", "has an unknown scheme|names no bucket"),
    ],
)
def test_addresses_that_cannot_be_used_are_refused_without_their_secrets(address: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as found:
        build_config({"run": {"store": address}})
    assert "secret@" not in str(found.value)
    assert "=secret" not in str(found.value)


def test_a_store_that_cannot_be_reached_is_told_before_anything_is_written(
    settings: dict[str, Any], tmp_path: Path, object_store: ObjectStore
) -> None:
    settings["run"]["store"] = "s3://no-such-bucket/runs"
    with pytest.raises(InputError, match="no-such-bucket"):
        run(settings)
    assert not (tmp_path / "runs" / "tiny").exists()


def test_the_doctor_finds_out_and_leaves_nothing(settings: dict[str, Any], store: RunStore, url: StoreUrl) -> None:
    assert list(_check_requirements(build_config(settings))) == []
    settings["run"]["store"] = "s3://no-such-bucket/runs"
    (finding,) = _check_requirements(build_config(settings))
    assert "no-such-bucket" in finding.text
    assert stores.list_names(url) == {}


def test_adapt_and_finetune_refuse_what_they_would_not_use(trained_run: Path, tmp_path: Path) -> None:
    settings = ["run.store=s3://bucket/runs"]
    with pytest.raises(InputError, match=r"run\.store keeps a run of train in a store, not the several runs of adapt"):
        mw.adapt(trained_run, ["a text"], out=tmp_path / "out", settings=settings)
    with pytest.raises(InputError, match=r"'run\.store=s3://bucket/runs' has no effect on fine-tuning"):
        mw.finetune("classification", tmp_path / "out", model=trained_run, train="a.csv", settings=settings)
    assert not (tmp_path / "out").exists()


def test_a_folder_is_a_store_too(
    settings: dict[str, Any], tmp_path: Path, whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings["run"]["store"] = f"file://{tmp_path}/my%20store"
    interrupt(settings, monkeypatch, 4)
    assert_same(run(settings), whole)
    assert (tmp_path / "my store" / "tiny" / "final.json").is_file()


@pytest.mark.slow  # tests/test_google_store.py has the parts
def test_googles_store_is_one_too(settings: dict[str, Any], whole: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_google(monkeypatch) as google:
        settings["run"]["store"] = f"gs://{GOOGLE_BUCKET}/runs"
        google.fail("PUT", ["500", "500"])
        interrupt(settings, monkeypatch, 4)
        google.fail("GET", ["500", "cut", "500"])
        folder = run(settings)
        assert google.list_faults() == []
        assert_same(folder, whole)
        found = read_all(StoreUrl(f"gs://{GOOGLE_BUCKET}/runs/tiny"))
        assert find_whole_steps(found) == [9, 8]
        assert found["model/model.safetensors"] == (folder.model / "model.safetensors").read_bytes()
        monkeypatch.setenv("MASKWRIGHT_CACHE", str(folder.path.parent / "cache"))
        fetched = resolve_folder(f"gs://{GOOGLE_BUCKET}/runs/tiny")
        assert (fetched / "model.safetensors").read_bytes() == found["model/model.safetensors"]


def _start_ranks(config: Path, folders: list[Path], port: int) -> list[subprocess.Popen[bytes]]:
    """A process to each folder, as of machines without a disk in common."""
    started = []
    for rank, folder in enumerate(folders):
        folder.mkdir(exist_ok=True)
        places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(folders))}
        ranks = {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "maskwright", "train", str(config)]
        with (folder / "log").open("ab") as log:
            environment = {**os.environ, **places, **ranks}
            started.append(subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log))
    return started


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(900)  # six runs of processes that share two cores: a minute, and four with much other work beside
def test_machines_without_a_common_disk_that_are_all_lost_go_on_from_the_store(
    settings: dict[str, Any], store: RunStore, tmp_path: Path
) -> None:
    settings["training"] |= {"max_steps": 300, "epochs": 1000, "checkpoint_every_steps": 50, "evaluate_max_batches": 1}
    settings["run"]["out"] = "runs"
    config, alone = tmp_path / "config.yaml", tmp_path / "alone.yaml"
    build_config(settings).save(config)
    build_config({**settings, "run": {**settings["run"], "store": None}}).save(alone)
    machines = [tmp_path / "one", tmp_path / "two"]
    ranks = _start_ranks(config, machines, _find_free_port())
    try:
        while not any(step >= 50 for step in store.list_whole_steps()):
            assert all(rank.poll() is None for rank in ranks), (machines[0] / "log").read_text()
            time.sleep(0.1)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for folder in machines:
        shutil.rmtree(folder / "runs", ignore_errors=True)  # the second has nothing of its own yet
    assert not store.is_finished
    again = _start_ranks(config, machines, _find_free_port())
    assert [rank.wait(300) for rank in again] == [0, 0], (machines[0] / "log").read_text()
    assert "fetching step" in (machines[0] / "log").read_text()
    whole = [tmp_path / "whole-one", tmp_path / "whole-two"]
    assert [rank.wait(300) for rank in _start_ranks(alone, whole, _find_free_port())] == [0, 0]
    assert_same(RunFolder(machines[0] / "runs" / "tiny"), RunFolder(whole[0] / "runs" / "tiny"))
