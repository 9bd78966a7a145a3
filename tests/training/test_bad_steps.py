"""Steps that go wrong: skipped, counted, named; and batches that do not fit into memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from maskwright.errors import RunError
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer


class Recorder(Callback):
    def __init__(self):
        self.lines, self.warnings, self.weights, self.states = [], [], [], []

    def on_log(self, metrics):
        self.lines.append(dict(metrics))

    def on_warning(self, message):
        self.warnings.append(message)

    def on_step_end(self, step):
        trainer = self.trainer
        self.weights.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
        self.states.append({name: tensor.clone() for name, tensor in trainer.optimizers.state_tensors().items()})


def build_trainer(model, optimizer="adamw", **training):
    return Trainer(
        model,
        OptimizerConfig(type=optimizer, learning_rate=1e-2),
        ScheduleConfig(type="constant", warmup_steps=0),
        TrainingConfig(device="cpu", precision="fp32", **({"log_every_steps": 1} | training)),
    )


def spoil(model, steps, where):
    """Make the loss, or the gradient alone, of chosen steps not finite."""
    loss_sums, calls = model.loss_sums, []

    def spoiled(corrupted):
        sums = loss_sums(corrupted)
        calls.append(1)
        if len(calls) in steps:
            factor = torch.tensor(float("nan") if where == "loss" else 1.0)
            total = sums.losses * factor
            if where == "gradient":
                total.register_hook(lambda gradient: gradient * float("inf"))
            return replace(sums, losses=total)
        return sums

    model.loss_sums = spoiled


def is_same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_bad_steps_change_nothing_and_are_counted(build_model, padded_batches, optimizer, where):
    model, recorder = build_model(), Recorder()
    spoil(model, {3, 5}, where)
    trainer = build_trainer(model, optimizer, average_decay=0.9)
    trainer.fit(padded_batches, epochs=1, callbacks=[recorder], verbose=False)
    assert trainer.state.step == 6
    assert [line["skipped_steps"] for line in recorder.lines] == [0, 0, 1, 1, 2, 2]
    for step in (3, 5):
        assert is_same(recorder.weights[step - 1], recorder.weights[step - 2])
        assert is_same(recorder.states[step - 1], recorder.states[step - 2])
    for step in (2, 4, 6):
        assert not is_same(recorder.weights[step - 1], recorder.weights[step - 2])
    assert all(torch.isfinite(tensor).all() for tensor in recorder.weights[-1].values())
    assert len(recorder.warnings) == 2
    assert "step 3: 1 steps were skipped" in recorder.warnings[0]


def test_bad_steps_leave_the_epoch_s_loss_finite(build_model, padded_batches):
    model = build_model()
    spoil(model, {1, 2}, "loss")
    history = build_trainer(model, log_every_steps=100).fit(padded_batches, epochs=1, verbose=False).history
    assert 0 < history["loss"][0] < 10


def test_a_streak_is_counted_over_log_lines_and_broken_by_a_good_step(build_model, padded_batches):
    model = build_model()
    spoil(model, {2, 3, 5, 6}, "loss")
    trainer = build_trainer(model, max_bad_steps=3)
    trainer.fit(padded_batches, epochs=1, verbose=False)
    assert trainer.state.num_skipped == 4
    assert trainer.state.bad_streak == 2


def test_a_streak_goes_on_over_a_resume(build_model, padded_batches, tmp_path):
    class SaveAndLeave(Callback):
        def on_step_end(self, step):
            if step == 3:
                self.trainer.save_checkpoint(tmp_path)
                self.trainer.stop_training = True

    begun, resumed = build_model(), build_model()
    spoil(begun, {2, 3}, "loss")
    build_trainer(begun, max_bad_steps=3).fit(padded_batches, epochs=1, callbacks=[SaveAndLeave()], verbose=False)
    spoil(resumed, {1}, "loss")
    trainer = build_trainer(resumed, max_bad_steps=3)
    trainer.load_checkpoint(tmp_path / "step-3")
    samples = r"samples (-?\d+, )+\.\.\."
    expected = rf"3 steps in a row, .* step 3 \(learning rate 1\.00e-02, gradient norm nan, {samples}\)"
    with pytest.raises(RunError, match=expected):
        trainer.fit(padded_batches, epochs=1, verbose=False)


def limit_memory(model, max_rows, error=None):
    """A model that runs out of memory on more rows, after it has computed and kept some gradients."""
    loss_sums, attempts = model.loss_sums, []

    def limited(corrupted):
        attempts.append(len(corrupted.labels))
        if len(corrupted.labels) > max_rows:
            raise error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines")
        return loss_sums(corrupted)

    model.loss_sums = limited
    return attempts


@pytest.mark.parametrize("error", [None, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")])
def test_out_of_memory_gives_the_run_of_smaller_parts(build_model, padded_batches, error):
    model, reference, recorder = build_model(dropout=0.2), build_model(dropout=0.2), Recorder()
    attempts = limit_memory(model, 1, error)
    build_trainer(model).fit(padded_batches, epochs=2, callbacks=[recorder], verbose=False)
    build_trainer(reference, micro_batch_tokens=16).fit(padded_batches, epochs=2, verbose=False)
    assert is_same(model.state_dict(), reference.state_dict())
    assert [rows for rows in attempts if rows > 1] == [4, 2], "what did not fit once is not tried again"
    assert len(recorder.warnings) == 2
    assert recorder.warnings[1] == (
        "out of memory with 32 tokens at a time; going on with 16, the batch stays the same"
        " (training.micro_batch_tokens=16 avoids the attempt)"
    )


def test_a_row_that_does_not_fit_ends_the_run(build_model, padded_batches):
    model = build_model()
    limit_memory(model, 0)
    expected = r"single row of 16 tokens \(CUDA out of memory\. Tried to allocate 2 GiB\); use .*activation_checkpoint"
    with pytest.raises(RunError, match=expected):
        build_trainer(model).fit(padded_batches, epochs=1, verbose=False)


def test_other_failures_are_not_taken_for_a_lack_of_memory(build_model, padded_batches):
    model = build_model()
    limit_memory(model, 1, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        build_trainer(model).fit(padded_batches, epochs=1, verbose=False)
