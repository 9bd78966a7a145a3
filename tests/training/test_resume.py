from __future__ import annotations

import signal

import pytest
import torch

import maskwright.training.loop as loop_module
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.callbacks import EarlyStopping
from maskwright.training.distributed.world import agree
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer


class Log(Callback):
    def __init__(self):
        self.lines = []

    def on_log(self, metrics):
        timed = ("tokens_per_s", "elapsed_s", "data_wait")
        self.lines.append({name: value for name, value in metrics.items() if name not in timed})


class SaveAt(Callback):
    """Saves at one step, as a run that is killed right after would have."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


def build_trainer(model, type, max_steps=None):
    return Trainer(
        model,
        OptimizerConfig(type=type, learning_rate=1e-2),
        ScheduleConfig(type="cosine_decay", warmup_steps=3),
        TrainingConfig(device="cpu", log_every_steps=4, max_steps=max_steps),
        mask_ratio=lambda progress: 0.4 - 0.2 * progress,
        seed=5,
    )


_PLACES = ("log line", "between log lines", "last step of an epoch", "first step of an epoch")


def assert_resumes(tmp_path, build_model, train, validation, type, step, max_steps=None):
    whole_log, rest_log = Log(), Log()
    whole = build_trainer(build_model(dropout=0.2), type, max_steps)
    whole.fit(train, validation, epochs=3, callbacks=[whole_log, SaveAt(tmp_path, step)])
    resumed = build_trainer(build_model(dropout=0.2, seed=99), type, max_steps)
    resumed.load_checkpoint(tmp_path / f"step-{step}")
    resumed.fit(train, validation, epochs=3, callbacks=[rest_log])

    assert resumed.history.history == whole.history.history
    assert [line for line in whole_log.lines if line["step"] > step] == rest_log.lines
    assert resumed.state.step == whole.state.step
    assert resumed.state.num_tokens == whole.state.num_tokens
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
    for name, tensor in whole.optimizers.state_tensors().items():
        assert torch.equal(tensor, resumed.optimizers.state_tensors()[name]), name
    return whole


@pytest.mark.parametrize(
    ("type", "place"),
    [
        ("adamw", _PLACES[0]),
        ("muon", _PLACES[1]),
        *(pytest.param("adamw", place, marks=pytest.mark.slow) for place in _PLACES[1:]),
        *(pytest.param("muon", place, marks=pytest.mark.slow) for place in (_PLACES[0], *_PLACES[2:])),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, build_model, build_loader, type, place):
    train, validation = build_loader(), build_loader(10, seed=1)
    per_epoch = len(train)
    step = {
        "log line": per_epoch + 8 - per_epoch % 4,
        "between log lines": per_epoch + 3 - per_epoch % 2,
        "last step of an epoch": per_epoch,
        "first step of an epoch": per_epoch + 1,
    }[place]
    whole = assert_resumes(tmp_path, build_model, train, validation, type, step)
    assert len(whole.history.history["val_loss"]) == 3


@pytest.mark.parametrize("step", [3, pytest.param(6, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
def test_resume_over_a_list_of_padded_batches(tmp_path, build_model, padded_batches, step):
    assert_resumes(tmp_path, build_model, padded_batches, None, "adamw", step)


@pytest.mark.parametrize("max_steps", [8, 6])
def test_run_saved_after_its_last_step_takes_no_further_one(tmp_path, build_model, padded_batches, max_steps):
    """Within an epoch and at its edge."""
    whole = assert_resumes(tmp_path, build_model, padded_batches, None, "adamw", max_steps, max_steps)
    assert whole.state.step == max_steps


class SaveAtEpochEnd(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_epoch_end(self, epoch, metrics):
        self.trainer.save_checkpoint(self.folder)


def test_checkpoint_from_the_end_of_an_epoch_does_not_repeat_it(tmp_path, build_model, padded_batches):
    whole = build_trainer(build_model(dropout=0.2), "adamw")
    whole.fit(padded_batches, epochs=3, callbacks=[SaveAtEpochEnd(tmp_path)])
    for step in (6, 12, 18):
        resumed = build_trainer(build_model(dropout=0.2), "adamw")
        resumed.load_checkpoint(tmp_path / f"step-{step}")
        assert resumed.fit(padded_batches, epochs=3).history == whole.history.history
        assert all(
            torch.equal(param, resumed.model.get_parameter(name)) for name, param in whole.model.named_parameters()
        )


def test_early_stopping_counts_the_epochs_before_the_interruption(tmp_path, build_model, padded_batches):
    def stop_early():
        return EarlyStopping(monitor="loss", patience=2, min_delta=100.0)  # no later epoch counts as better

    whole = build_trainer(build_model(), "adamw")
    assert len(whole.fit(padded_batches, epochs=9, callbacks=[stop_early(), SaveAt(tmp_path, 11)]).history["loss"]) == 3
    resumed = build_trainer(build_model(), "adamw")
    resumed.load_checkpoint(tmp_path / "step-11")
    assert len(resumed.fit(padded_batches, epochs=9, callbacks=[stop_early()]).history["loss"]) == 3


@pytest.mark.parametrize("optimizer", ["fresh", "kept"])
def test_continuing_is_a_run_of_its_own_on_the_weights(tmp_path, build_model, padded_batches, optimizer):
    first = build_trainer(build_model(), "adamw")
    first.fit(padded_batches, epochs=2, verbose=False)
    checkpoint = first.save_checkpoint(tmp_path)
    second = build_trainer(build_model(seed=9), "adamw")
    second.continue_from(checkpoint, optimizer)
    assert all(torch.equal(param, second.model.get_parameter(name)) for name, param in first.model.named_parameters())
    stored, taken = first.optimizers.state_tensors(), second.optimizers.state_tensors()
    assert taken.keys() == (stored.keys() if optimizer == "kept" else set())
    assert all(torch.equal(taken[name], stored[name]) for name in taken)
    log = Log()
    history = second.fit(padded_batches, epochs=3, initial_epoch=2, callbacks=[log], verbose=False)
    assert len(history.history["loss"]) == 1
    assert log.lines[0]["step"] == 4, "steps, and with them the schedule, begin anew"
    assert log.lines[0]["epoch"] == 2


def test_a_signal_that_comes_while_processes_agree_is_heard_at_the_next_step(build_model, padded_batches, monkeypatch):
    heard = []

    class Listen(Callback):
        def on_step_end(self, step):
            heard.append(self.trainer.agreed_signal)

    trainer = build_trainer(build_model(), "adamw")

    def interrupted_agree(world, elapsed_s, stop, received):
        verdict = agree(world, elapsed_s, stop, received)
        if trainer.state.step == 2:
            trainer.received_signal = signal.SIGTERM  # as its handler does
        return verdict

    monkeypatch.setattr(loop_module, "agree", interrupted_agree)
    trainer.fit(padded_batches[:4], epochs=1, callbacks=[Listen()], verbose=False)
    assert heard == [0, 0, signal.SIGTERM, signal.SIGTERM]
