"""Checkpoints written in the background: the same files, and failures that harm nothing."""

from __future__ import annotations

import errno
import json
import resource
import signal
from pathlib import Path

import pytest
import torch

import maskwright.training.checkpoints as checkpoints_module
from maskwright.errors import RunError
from maskwright.objectives.saving import ModelSnapshot
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.training.checkpoint_writer import LateWrites
from maskwright.training.checkpoints import Retention, clear_leftovers, find_best, find_resumable
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer


class SaveEvery(Callback):
    def __init__(self, folder, background, every=2, last=None):
        self.folder, self.background, self.every, self.retention = folder, background, every, Retention(last)
        self.warnings = []

    def on_step_end(self, step):
        if step % self.every == 0:
            self.trainer.save_checkpoint(self.folder, retention=self.retention, background=self.background)

    def on_warning(self, message):
        self.warnings.append(message)


def build_trainer(model):
    config = TrainingConfig(device="cpu", precision="fp32", average_decay=0.9, log_every_steps=1)
    return Trainer(model, OptimizerConfig(learning_rate=1e-2), training=config)


def read_files(folder):
    """All files but state.json's own time and, with it, its checksum."""
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in files.items() if name.name not in ("state.json", "checksums.json")}


def test_background_checkpoints_equal_those_of_the_foreground(build_model, padded_batches, tmp_path):
    for background in (False, True):
        saving = SaveEvery(tmp_path / str(background), background)
        build_trainer(build_model(dropout=0.1)).fit(padded_batches, epochs=2, callbacks=[saving], verbose=False)
    assert read_files(tmp_path / "True") == read_files(tmp_path / "False")
    assert len(list((tmp_path / "True").iterdir())) == 6
    assert find_resumable(tmp_path / "True") == (tmp_path / "True" / "step-12", [])


def test_weights_that_change_while_they_are_written_are_those_of_the_step(build_model, padded_batches, tmp_path):
    trainer = build_trainer(build_model())
    trainer.fit(padded_batches, epochs=1, verbose=False)
    expected = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.save_checkpoint(tmp_path, background=True)
    with torch.no_grad():
        for param in trainer.model.parameters():
            param.fill_(7.0)
    trainer.finish_writing()
    other = build_trainer(build_model(seed=1))
    other.load_checkpoint(tmp_path / "step-6")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.model.state_dict().items())


def test_a_full_disk_is_a_warning_and_training_goes_on(build_model, padded_batches, tmp_path, monkeypatch):
    write, calls = checkpoints_module.write_safetensors, []

    def full_for_a_while(path, tensors):
        calls.append(path)
        if 3 <= len(calls) <= 4:  # the optimizer's file of the second and third checkpoint
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, tensors)

    monkeypatch.setattr(checkpoints_module, "write_safetensors", full_for_a_while)
    saving, model, reference = SaveEvery(tmp_path, background=True, last=2), build_model(), build_model()
    build_trainer(model).fit(padded_batches, epochs=2, callbacks=[saving], verbose=False)
    build_trainer(reference).fit(padded_batches, epochs=2, verbose=False)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in reference.state_dict().items())
    assert len(saving.warnings) == 2
    assert all("No space left on device; earlier checkpoints are untouched" in text for text in saving.warnings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-12"]
    assert find_resumable(tmp_path) == (tmp_path / "step-12", [])


class SmallDisk:
    """Refuses tensors beyond a capacity, counted in checkpoints' tensors; files beside them take no room."""

    def __init__(self, folder, capacity, monkeypatch):
        self.folder, self.capacity = folder, capacity
        self._write = checkpoints_module.write_safetensors
        for name in ("maskwright.training.checkpoints", "maskwright.models.files.model_folder"):
            monkeypatch.setattr(f"{name}.write_safetensors", self.write)
        monkeypatch.setattr(checkpoints_module, "count_free_bytes", lambda path: self.free)
        monkeypatch.setattr("maskwright.storage.count_free_bytes", lambda path: self.free)
        monkeypatch.setattr(checkpoints_module, "_measure", self.measure)

    @property
    def free(self):
        return self.capacity - self.measure(self.folder)

    def measure(self, folder):
        return sum(file.stat().st_size for file in folder.rglob("*.safetensors*"))

    def write(self, path, tensors, metadata=None):
        """A kill at this moment would leave these."""
        if find_resumable(self.folder)[0] is None and list(self.folder.glob("step-*")):
            pytest.fail("no whole checkpoint is there")
        self._write(path, tensors, metadata)
        if self.free < 0:
            path.unlink()
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


def measure_checkpoint(model, batches, folder):
    trainer = build_trainer(model)
    trainer.fit(batches[:1], epochs=1, verbose=False)
    checkpoint = trainer.save_checkpoint(folder)
    return sum(file.stat().st_size for file in checkpoint.rglob("*.safetensors"))


@pytest.mark.parametrize("background", [False, True])
def test_on_a_full_disk_old_checkpoints_make_room_for_the_newest(
    build_model, padded_batches, tmp_path, monkeypatch, background
):
    size = measure_checkpoint(build_model(), padded_batches, tmp_path / "one")
    folder = tmp_path / "all"
    SmallDisk(folder, int(2.5 * size), monkeypatch)
    saving = SaveEvery(folder, background, last=3)
    build_trainer(build_model()).fit(padded_batches, epochs=2, callbacks=[saving], verbose=False)
    assert sorted(path.name for path in folder.iterdir()) == ["step-10", "step-12"]
    assert find_resumable(folder) == (folder / "step-12", [])
    expected = [
        f"the disk is full: {folder}/step-{step - 4} is removed to make room for {folder}/step-{step}"
        for step in (6, 8, 10, 12)
    ]
    assert saving.warnings == expected


def test_the_only_whole_checkpoint_stays_and_the_bytes_are_named(build_model, padded_batches, tmp_path, monkeypatch):
    size = measure_checkpoint(build_model(), padded_batches, tmp_path / "one")
    folder = tmp_path / "all"
    disk = SmallDisk(folder, int(1.5 * size), monkeypatch)
    saving = SaveEvery(folder, background=True, last=1)
    build_trainer(build_model()).fit(padded_batches, epochs=1, callbacks=[saving], verbose=False)
    assert [path.name for path in folder.iterdir()] == ["step-2"]
    assert len(saving.warnings) == 2
    for step, text in zip((4, 6), saving.warnings, strict=True):
        assert f"cannot write {folder}/step-{step}: [Errno 28] No space left on device: '{folder}/step-{step}/" in text
        assert f"it needs {size:,} bytes, {disk.free:,} are free on its disk; training goes on" in text


def test_nothing_is_removed_for_a_checkpoint_that_would_not_fit_anyway(
    build_model, padded_batches, tmp_path, monkeypatch
):
    size = measure_checkpoint(build_model(), padded_batches, tmp_path / "one")
    folder = tmp_path / "all"
    disk = SmallDisk(folder, int(2.5 * size), monkeypatch)
    trainer = build_trainer(build_model())
    trainer.fit(padded_batches[:1], epochs=1, verbose=False)
    for step in (1, 2):
        trainer.state.step = step
        trainer.save_checkpoint(folder)
    disk.capacity = int(1.9 * size)  # something else takes the room, more than step-1 has
    trainer.state.step = 3
    with pytest.raises(RunError, match="earlier checkpoints are untouched; it needs"):
        trainer.save_checkpoint(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["step-1", "step-2"]


def test_milestones_and_the_best_are_not_removed_for_room(build_model, padded_batches, tmp_path, monkeypatch):
    size = measure_checkpoint(build_model(), padded_batches, tmp_path / "one")
    folder = tmp_path / "all"
    SmallDisk(folder, int(4.5 * size), monkeypatch)
    trainer = build_trainer(build_model())
    trainer.fit(padded_batches[:1], epochs=1, verbose=False)
    trainer.state.best_step, trainer.state.best_loss = 3, 0.5
    for step in (3, 10, 12, 13, 14, 15):
        trainer.state.step = step
        trainer.save_checkpoint(folder, retention=Retention(last=9, every_steps=10))
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-10", "step-14", "step-15", "step-3"]


def test_files_that_a_full_disk_refuses_are_written_when_there_is_room(tmp_path, monkeypatch):
    warnings, written = [], []
    late = LateWrites(warnings.append)
    room = {"bytes": 0}
    monkeypatch.setattr("maskwright.training.checkpoint_writer.count_free_bytes", lambda path: room["bytes"])

    def write():
        if room["bytes"] < 10:
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "file"))
        written.append(room["bytes"])

    late.write(tmp_path / "file", write, 10)
    late.write(tmp_path / "file", write, 10)
    late.retry()
    assert written == []
    assert len(warnings) == 1, "once, until it has worked again"
    assert f"cannot write {tmp_path / 'file'}: No space left on device; it needs 10 bytes, " in warnings[0]
    with pytest.raises(OSError, match="No space left on device"):
        late.check()
    room["bytes"] = 10
    late.retry()
    late.retry()
    late.check()
    assert written == [10]


def test_files_that_the_system_refuses_leave_the_checkpoint_before(tmp_path):
    def write(step, size):
        model = ModelSnapshot({}, {"weight": torch.zeros(10)}, None)
        values = {"state": {"best_step": None, "best_loss": None}}
        contents = checkpoints_module.CheckpointContents(step, model, {"state": torch.zeros(size)}, None, values, None)
        checkpoints_module.write_checkpoint(tmp_path, contents)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        write(1, 10)
        with pytest.raises(RunError, match=r"step-2: .*File too large.*earlier checkpoints are untouched$"):
            write(2, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


@pytest.fixture
def saved(build_model, padded_batches, tmp_path) -> Path:
    saving = SaveEvery(tmp_path, background=False)
    build_trainer(build_model()).fit(padded_batches, epochs=1, callbacks=[saving], verbose=False)
    return tmp_path


def list_damage():
    names = ["checksums.json", "state.json", "optimizer.safetensors", "average.safetensors"]
    files = [*names, "model/config.json", "model/model.safetensors"]
    return [(file, bit) for file in files for bit in (None, 0, 3, 7)]


def test_any_damage_to_any_file_falls_back_to_the_checkpoint_before(saved):
    newest = saved / "step-6"
    assert {str(path.relative_to(newest)) for path in newest.rglob("*") if path.is_file()} == {
        file for file, _ in list_damage()
    }
    for name, bit in list_damage():
        file = newest / name
        whole = file.read_bytes()
        # The last byte of a JSON file is a line break, which says nothing.
        for place in range(0, len(whole) - 1, max(1, len(whole) // 11)):
            damaged = bytearray(whole)
            if bit is not None:
                damaged[place] ^= 1 << bit
            file.write_bytes(damaged if bit is not None else whole[:place])
            found, problems = find_resumable(saved)
            assert found == saved / "step-4", (name, bit, place)
            assert len(problems) == 1
            assert problems[0].startswith("checkpoint step-6 is unusable: ")
        file.write_bytes(whole)
    assert find_resumable(saved) == (newest, [])


def test_what_a_kill_inside_a_save_leaves_is_cleared(saved):
    (saved / "step-6").rename(saved / ".step-6.old")  # between the two renames that replace a checkpoint
    (saved / ".step-6.tmp").mkdir()
    (saved / ".step-4.old").mkdir()  # after them
    (saved / ".best.json.tmp").write_text("{")
    clear_leftovers(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["step-2", "step-4", "step-6"]
    assert find_resumable(saved) == (saved / "step-6", [])
    clear_leftovers(saved / "nowhere")


def test_milestones_and_the_best_stay_beside_the_newest(build_model, padded_batches, tmp_path):
    trainer = build_trainer(build_model())
    trainer.fit(padded_batches[:1], epochs=1, verbose=False)
    for step in (1, 3, 10, 12, 20, 21, 22):
        trainer.state.step = step
        if step == 3:
            trainer.state.best_step, trainer.state.best_loss = step, 0.5
        trainer.save_checkpoint(tmp_path, retention=Retention(last=2, every_steps=10))
    kept = sorted(int(path.name.removeprefix("step-")) for path in tmp_path.glob("step-*"))
    assert kept == [3, 10, 20, 21, 22]
    assert find_best(tmp_path) == tmp_path / "step-3"
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 3, "value": 0.5}
