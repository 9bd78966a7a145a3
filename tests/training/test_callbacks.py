from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from io import StringIO
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

import maskwright.training.callbacks as callbacks_module
from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training import notebook
from maskwright.training.callbacks import EarlyStopping, ModelCheckpoint, TensorBoard
from maskwright.training.checkpoint_writer import LateWrites
from maskwright.training.distributed.world import World
from maskwright.training.loop import Callback
from maskwright.training.progress import ProgressDisplay, format_duration
from maskwright.training.trainer import Trainer


@pytest.fixture
def fit(build_model, padded_batches):
    def run(callbacks, epochs=2, learning_rate=1e-2, validation=None, **training):
        trainer = Trainer(
            build_model(dropout=0.1),
            OptimizerConfig(learning_rate=learning_rate),
            ScheduleConfig(type="constant", warmup_steps=0),
            TrainingConfig(device="cpu", **training),
        )
        trainer.fit(padded_batches, validation, epochs=epochs, callbacks=callbacks)
        return trainer

    return run


class FakeTrainer:
    """Hands out metrics of the test's choosing, with one weight that says which epoch it is of."""

    def __init__(self, callback, monitor):
        self.model = torch.nn.Linear(1, 1)
        self.model.save_pretrained = lambda folder, tokenizer=None: self.saved.append(folder)
        self.saved = []
        self.metric_names = (monitor,)
        self.stop_training = False
        self.averaged_weights, self.world = nullcontext, World()
        self.late_writes = LateWrites(pytest.fail)
        self.history = type("History", (), {"history": {}})()
        callback.trainer = self
        self.callback, self.monitor = callback, monitor

    def run(self, values):
        """Epochs until the callback stops the run; gives their number."""
        self.callback.on_train_begin()
        for epoch, value in enumerate(values):
            with torch.no_grad():
                self.model.weight.fill_(float(epoch))
            self.callback.on_epoch_end(epoch, {self.monitor: value})
            if self.stop_training:
                break
        self.callback.on_train_end()
        return epoch + 1


def test_model_checkpoint_writes_a_folder_per_epoch_that_loads(fit, tmp_path, padded_batches):
    trainer = fit([ModelCheckpoint(tmp_path / "mlm_{epoch:02d}-{loss:.2f}")])
    losses = trainer.history.history["loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"mlm_01-{losses[0]:.2f}", f"mlm_02-{losses[1]:.2f}"]
    loaded = MaskedLanguageModel.from_pretrained(tmp_path / f"mlm_02-{losses[1]:.2f}")
    trainer.model.eval()
    assert torch.equal(loaded(padded_batches[0]).logits, trainer.model(padded_batches[0]).logits)


@pytest.mark.parametrize(
    ("monitor", "values", "kept"),
    [("val_loss", [3.0, 2.0, 2.5, 1.0], [0, 1, 3]), ("val_mlm_accuracy", [0.1, 0.3, 0.2, 0.3], [0, 1])],
)
def test_save_best_only_writes_improvements(monitor, values, kept):
    trainer = FakeTrainer(ModelCheckpoint("m{epoch}", monitor=monitor, save_best_only=True), monitor)
    trainer.run(values)
    assert trainer.saved == [f"m{epoch + 1}" for epoch in kept]


@pytest.mark.parametrize("name", ["m_{accuracy}", "m_{}", "m_{epoch:zz}", "m_{epoch"])
def test_model_checkpoint_with_a_name_that_cannot_be_filled_is_refused_before_training(fit, tmp_path, name):
    class NoStep(Callback):
        def on_step_end(self, step):
            pytest.fail("the run began")

    with pytest.raises(InputError, match="known are epoch, loss, mlm_accuracy"):
        fit([ModelCheckpoint(tmp_path / name), NoStep()])


@pytest.mark.parametrize("callback", [EarlyStopping(), ModelCheckpoint("m", save_best_only=True)])
def test_missing_monitor_is_refused_before_training(fit, callback):
    class NoStep(Callback):
        def on_step_end(self, step):
            pytest.fail("the run began")

    with pytest.raises(InputError, match=r"no metric 'val_loss' .*known are loss, mlm_accuracy; give fit a validation"):
        fit([callback, NoStep()])


@pytest.mark.parametrize(
    ("settings", "values", "stopped_epoch"),
    [
        ({"patience": 0}, [3, 2, 2, 1], 2),
        ({"patience": 1}, [3, 2, 2, 1], 2),
        ({"patience": 2}, [3, 2, 2, 1, 2, 1, 0], 5),
        ({"patience": 3}, [3, 2, 2, 2], None),
        ({"patience": 1, "min_delta": 0.5}, [3.0, 2.4, 2.0, 1.0], 2),
        ({"patience": 1, "mode": "max"}, [1, 2, 3, 2, 5], 3),
    ],
)
def test_early_stopping_waits_for_its_patience(settings, values, stopped_epoch):
    callback = EarlyStopping(monitor="loss", **settings)
    num_epochs = FakeTrainer(callback, "loss").run(values)
    assert callback.stopped_epoch == stopped_epoch
    assert num_epochs == (len(values) if stopped_epoch is None else stopped_epoch + 1)


def test_early_stopping_on_accuracy_waits_for_it_to_rise():
    callback = EarlyStopping(monitor="val_mlm_accuracy", patience=1)
    assert FakeTrainer(callback, "val_mlm_accuracy").run([0.1, 0.2, 0.3, 0.3, 0.9]) == 4
    assert callback.stopped_epoch == 3


@pytest.mark.parametrize(("restore", "weight"), [(True, 1.0), (False, 3.0)])
def test_early_stopping_restores_the_best_weights_when_asked(restore, weight):
    trainer = FakeTrainer(EarlyStopping(monitor="loss", patience=2, restore_best_weights=restore), "loss")
    assert trainer.run([3.0, 1.0, 2.0, 2.0]) == 4
    assert float(trainer.model.weight.detach()) == weight


def test_early_stopping_in_a_real_run_goes_back_to_the_best_epoch(fit, padded_batches):
    class KeepWeights(Callback):
        def __init__(self):
            self.weights = []

        def on_epoch_end(self, epoch, metrics):
            self.weights.append({name: param.detach().clone() for name, param in self.trainer.model.named_parameters()})

    keep = KeepWeights()
    stop = EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True)
    # Validation on random text: it can only get worse while the training text is learnt.
    noise = [{"input_ids": torch.randint(5, 60, (8, 16), generator=torch.Generator().manual_seed(1))}]
    trainer = fit([keep, stop], epochs=20, learning_rate=5e-2, validation=noise)
    losses = trainer.history.history["val_loss"]
    best = losses.index(min(losses))
    assert len(losses) == best + 3 < 20
    for name, param in trainer.model.named_parameters():
        assert torch.equal(param, keep.weights[best][name])
        assert name.startswith("encoder.embeddings.token_type") or not torch.equal(param, keep.weights[-1][name])


def read_events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_events_can_be_read_back(fit, tmp_path, padded_batches):
    lines = []

    class Log(Callback):
        def on_log(self, metrics):
            lines.append(metrics)

    trainer = fit([TensorBoard(tmp_path, update_freq="log"), Log()], validation=padded_batches[:1], log_every_steps=4)
    events = read_events(tmp_path)
    for name in ("loss", "mlm_accuracy", "val_loss", "val_mlm_accuracy"):
        assert events[f"epoch/{name}"] == [
            (epoch, pytest.approx(value)) for epoch, value in enumerate(trainer.history.history[name])
        ]
    for name in ("loss", "mlm_accuracy", "lr", "grad_norm", "tokens_per_s", "mask_ratio"):
        assert events[f"step/{name}"] == [(line["step"], pytest.approx(line[name])) for line in lines]
    assert [line["step"] for line in lines] == [4, 6, 8, 12]


def test_tensorboard_has_all_scalars_after_a_while_of_a_full_disk(fit, tmp_path, monkeypatch):
    lines, warnings = [], []

    class Log(Callback):
        def on_log(self, metrics):
            lines.append(metrics)

        def on_warning(self, message):
            warnings.append(message)

    free = callbacks_module.count_free_bytes
    monkeypatch.setattr(callbacks_module, "count_free_bytes", lambda path: 0 if 4 <= len(lines) <= 8 else free(path))
    fit([Log(), TensorBoard(tmp_path, update_freq="log")], log_every_steps=1)
    assert read_events(tmp_path)["step/loss"] == [(line["step"], pytest.approx(line["loss"])) for line in lines]
    assert len(lines) == 12
    assert len(warnings) == 1
    assert f"cannot write {tmp_path}: No space left on device; it needs " in warnings[0]


def test_tensorboard_goes_on_in_a_new_file_after_a_failure(fit, tmp_path):
    lines = []

    class Break(Callback):
        def on_log(self, metrics):
            lines.append(metrics)
            if metrics["step"] == 5:
                failing = Mock(wraps=board._writer)
                failing.flush.side_effect = OSError(28, "No space left on device")
                board._writer = failing

    board = TensorBoard(tmp_path, update_freq="log")
    fit([Break(), board], log_every_steps=1)
    assert {step for step, _ in read_events(tmp_path)["step/loss"]} == {line["step"] for line in lines}
    assert len(list(tmp_path.iterdir())) == 2


def test_tensorboard_per_epoch_writes_no_steps(fit, tmp_path):
    fit([TensorBoard(tmp_path)])
    assert set(read_events(tmp_path)) == {"epoch/loss", "epoch/mlm_accuracy"}


def test_progress_is_plain_lines_outside_a_terminal(fit):
    console = Console(file=StringIO(), width=40)  # narrower than a line: a log file has no width
    trainer = fit([ProgressDisplay(console)], log_every_steps=3)
    output = console.file.getvalue()
    assert "\x1b" not in output
    first, *rest = output.splitlines()
    assert first.startswith("step 3  epoch 1  25%  loss ")
    for part in ("accuracy ", " tokens/s", " left"):
        assert part in first
    losses = trainer.history.history["loss"]
    assert [line.split("  ")[:2] for line in rest] == [
        ["epoch 1 done", f"loss {losses[0]:.4f}"],
        ["epoch 2 done", f"loss {losses[1]:.4f}"],
    ]


def test_slow_steps_between_log_lines_give_a_sign_of_life(fit, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    class Slow(Callback):
        def on_step_end(self, step):
            now_s[0] += 40.0

    console = Console(file=StringIO())
    fit([Slow(), ProgressDisplay(console)], epochs=1, log_every_steps=100)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("step")]
    # A line a minute at most; 40 s a step are seen from the second on, and the last step is logged.
    assert lines[0] == "step 2  epoch 1  33%  1:20 left"
    assert lines[1] == "step 4  epoch 1  67%  1:00 left"
    assert lines[2].startswith("step 6  epoch 1  100%  loss ")
    assert len(lines) == 3


def test_what_was_not_measured_is_not_shown() -> None:
    console = Console(file=StringIO(), width=120)
    display = ProgressDisplay(console)
    display.on_epoch_end(0, {"loss": 1.5, "pearson": float("nan"), "val_pearson": 0.25})
    assert console.file.getvalue() == "epoch 1 done  loss 1.5000  val_pearson 0.2500\n"


def test_progress_is_a_bar_in_a_terminal(fit):
    console = Console(file=StringIO(), force_terminal=True, width=160, legacy_windows=False)
    display = ProgressDisplay(console)
    fit([display], log_every_steps=3)
    output = console.file.getvalue()
    assert "━" in output
    assert "100%" in output
    assert "tokens/s" in output
    assert output.endswith("\x1b[?25h") or "\x1b[?25h" in output.splitlines()[-1]  # the cursor is shown again


def test_progress_bar_stops_after_an_error(fit):
    class Failing(Callback):
        def on_step_end(self, step):
            raise ValueError("mine")

    console = Console(file=StringIO(), force_terminal=True, legacy_windows=False)
    with pytest.raises(ValueError, match="mine"):
        fit([ProgressDisplay(console), Failing()])
    assert "\x1b[?25h" in console.file.getvalue()
    assert console._live_stack == []


def test_durations_read_as_clocks():
    assert [format_duration(seconds) for seconds in (0, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]


def test_a_resumed_run_goes_back_to_the_best_epoch_before_the_interruption(build_model, tmp_path):
    """The best weights are on disk; the epochs after the resume are all worse."""
    best, later = build_model(), build_model(seed=1)
    stop = EarlyStopping(monitor="loss", patience=2, restore_best_weights=True, best_folder=tmp_path / "best")
    trainer = FakeTrainer(stop, "loss")
    trainer.model = best
    stop.on_train_begin()
    stop.on_epoch_end(0, {"loss": 1.0})

    resumed = EarlyStopping(monitor="loss", patience=2, restore_best_weights=True, best_folder=tmp_path / "best")
    trainer = FakeTrainer(resumed, "loss")
    trainer.model, trainer.history.history = later, {"loss": [1.0]}
    resumed.on_train_begin()
    for epoch in (1, 2):
        resumed.on_epoch_end(epoch, {"loss": 2.0})
    resumed.on_train_end()
    assert trainer.stop_training
    for name, tensor in best.state_dict().items():
        assert torch.equal(later.state_dict()[name], tensor), name


def test_the_best_weights_reach_a_disk_that_was_full(build_model, tmp_path, monkeypatch):
    """Those of the best epoch, not those that the model has when there is room."""
    warnings, is_full = [], [True]
    whole_folder = callbacks_module.whole_folder

    def full_for_a_while(folder):
        if is_full:
            raise OSError(28, "No space left on device")
        return whole_folder(folder)

    monkeypatch.setattr(callbacks_module, "whole_folder", full_for_a_while)
    best, later = build_model(), build_model(seed=1)
    stop = EarlyStopping(monitor="loss", patience=2, restore_best_weights=True, best_folder=tmp_path / "best")
    trainer = FakeTrainer(stop, "loss")
    trainer.late_writes = LateWrites(warnings.append)
    trainer.model = best
    stop.on_train_begin()
    stop.on_epoch_end(0, {"loss": 1.0})
    assert f"cannot write {tmp_path / 'best'}: No space left on device" in warnings[0]
    expected = {name: tensor.clone() for name, tensor in best.state_dict().items()}
    best.load_state_dict(later.state_dict())
    is_full.clear()
    trainer.late_writes.retry()
    later.load_weights(tmp_path / "best")
    assert all(torch.equal(later.state_dict()[name], tensor) for name, tensor in expected.items())


def test_model_checkpoint_keeps_the_better_model_of_before_a_resume():
    checkpoint = ModelCheckpoint("model", monitor="loss", save_best_only=True)
    trainer = FakeTrainer(checkpoint, "loss")
    trainer.history.history = {"loss": [1.0]}
    assert trainer.run([5.0, 0.5]) == 2
    assert len(trainer.saved) == 1


def test_tensorboard_per_batch_writes_every_step_whatever_is_logged(fit, tmp_path):
    results = []

    class Keep(Callback):
        def on_step_end(self, step):
            metrics = self.trainer.model.compute_metrics(self.trainer.last_result.sums.tolist())
            results.append((step, metrics["loss"]))

    fit([TensorBoard(tmp_path, update_freq="batch"), Keep()], log_every_steps=4)
    events = read_events(tmp_path)
    assert [step for step, _ in results] == list(range(1, 13))
    assert events["step/loss"] == [(step, pytest.approx(loss)) for step, loss in results]
    for name in ("mlm_accuracy", "lr", "grad_norm"):
        assert [step for step, _ in events[f"step/{name}"]] == list(range(1, 13))


def test_tensorboard_with_a_number_writes_means_over_so_many_steps(fit, tmp_path):
    sums = []

    class Keep(Callback):
        def on_step_end(self, step):
            sums.append(self.trainer.last_result.sums)

    trainer = fit([TensorBoard(tmp_path, update_freq=5), Keep()], log_every_steps=4)
    means = [trainer.model.compute_metrics(sum(sums[start : start + 5]).tolist())["loss"] for start in (0, 5)]
    assert read_events(tmp_path)["step/loss"] == [
        (step, pytest.approx(mean)) for step, mean in zip((5, 10), means, strict=True)
    ]


def test_model_checkpoint_with_a_number_saves_after_so_many_steps(fit, tmp_path):
    fit([ModelCheckpoint(tmp_path / "e{epoch}-b{batch}-s{step:02d}", save_freq=4)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e1-b4-s04", "e2-b2-s08", "e2-b6-s12"]
    assert isinstance(MaskedLanguageModel.from_pretrained(tmp_path / "e1-b4-s04"), MaskedLanguageModel)


def test_model_checkpoint_inside_an_epoch_knows_the_epoch_so_far(fit, tmp_path):
    trainer = fit([ModelCheckpoint(tmp_path / "{epoch}-{loss:.4f}", save_freq=6)])
    names = [f"{epoch}-{loss:.4f}" for epoch, loss in enumerate(trainer.history.history["loss"], start=1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names  # epochs have six steps


def test_the_validation_set_cannot_be_watched_inside_an_epoch(fit, tmp_path, padded_batches):
    callback = ModelCheckpoint(tmp_path / "m", save_best_only=True, save_freq=2)
    with pytest.raises(
        InputError, match=r"no metric 'val_loss' .*known are loss, mlm_accuracy; with save_freq='epoch'"
    ):
        fit([callback], validation=padded_batches[:1])


@pytest.mark.parametrize(
    ("monitor", "rises"),
    [
        *[
            (name, True)
            for name in ("val_f1", "val_macro_f1", "matthews", "val_spearman", "val_pearson", "val_accuracy")
        ],
        *[(name, True) for name in ("val_precision", "recall", "val_window_exact", "exact_match", "val_detector_auc")],
        *[(name, False) for name in ("loss", "val_loss", "val_mlm_loss", "val_perplexity", "calibration_error")],
    ],
)
def test_what_is_better_follows_from_the_metric(monitor, rises):
    values = [1.0, 2.0, 3.0, 4.0]
    callback = EarlyStopping(monitor, patience=1)
    assert FakeTrainer(callback, monitor).run(values) == (4 if rises else 2)
    assert FakeTrainer(EarlyStopping(monitor, patience=1), monitor).run(values[::-1]) == (2 if rises else 4)
    overridden = EarlyStopping(monitor, patience=1, mode="min" if rises else "max")
    assert FakeTrainer(overridden, monitor).run(values) == (2 if rises else 4)


def test_every_metric_of_a_model_or_task_is_known_to_rise_or_fall(build_model):
    from maskwright.tasks.ner.token_classification import TokenClassification
    from maskwright.tasks.sequence.classification import Classification
    from maskwright.tasks.sequence.multi_label import MultiLabel
    from maskwright.tasks.sequence.regression import Regression

    tasks = [Classification(["a", "b"]), MultiLabel(["a", "b"]), Regression(), TokenClassification(["O", "B-X"])]
    names = set(build_model().compute_metrics([0.0] * 3))
    for task in tasks:
        names |= set(task.compute_metrics([0.0] * (2 + task.num_figures)))
    for name in names:
        callback = EarlyStopping(name, patience=1)
        rises = name.rpartition("_")[2] != "loss"
        assert FakeTrainer(callback, name).run([1.0, 2.0, 3.0]) == (3 if rises else 2)


def test_a_metric_of_which_nothing_is_known_needs_a_mode():
    with pytest.raises(InputError, match=r"more or less 'figure' is better is not known; say mode='max' or mode='min'"):
        FakeTrainer(EarlyStopping("figure"), "figure").run([1.0])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: EarlyStopping("loss", mode="maximize"), "mode is 'maximize'; expected 'min', 'max' or 'auto'"),
        (lambda: EarlyStopping("loss", patience="3"), "patience is '3'; it must be a number of epochs"),
        (lambda: EarlyStopping("loss", baseline=0.5), "EarlyStopping has no argument 'baseline': the first epoch's"),
        (lambda: EarlyStopping("loss", patince=3), "EarlyStopping has no argument 'patince'; did you mean 'patience'"),
        (lambda: EarlyStopping("loss", verbose=1), "no argument 'verbose': fit"),
        (lambda: ModelCheckpoint("m", save_freq="batch"), "save_freq is 'batch'; expected 'epoch', or a number of"),
        (lambda: ModelCheckpoint("m", save_freq=0), "save_freq is 0"),
        (lambda: ModelCheckpoint("m", save_weights_only=True), "no argument 'save_weights_only': a saved folder"),
        (lambda: TensorBoard("logs", update_freq="often"), "update_freq is 'often'; expected 'epoch' or 'batch' or"),
        (lambda: TensorBoard("logs", histogram_freq=1), "no argument 'histogram_freq': weights are not written"),
    ],
)
def test_arguments_of_keras_that_are_not_taken_say_what_is(build, reason):
    with pytest.raises(InputError, match=reason):
        build()


def test_arguments_of_keras_that_ask_for_nothing_are_let_through(tmp_path):
    EarlyStopping("loss", verbose=0, baseline=None, start_from_epoch=0)
    ModelCheckpoint(tmp_path / "m", verbose=0, save_weights_only=False)


def test_progress_is_one_changing_output_in_a_notebook(fit, monkeypatch):
    shown = []
    display = SimpleNamespace(
        HTML=str, display=lambda text, display_id: shown.append(text) or SimpleNamespace(update=shown.append)
    )
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "_INTERVAL_S", 0.0)
    console = Console(file=StringIO(), force_jupyter=True)
    trainer = fit([ProgressDisplay(console)], log_every_steps=3)
    assert console.file.getvalue() == ""
    assert "width: 0.0%" in shown[0]
    assert "width: 100.0%" in shown[-1]
    assert 'class="curve stroke-0"' in shown[-1]
    assert f"epoch 2 done  loss {trainer.history.history['loss'][1]:.4f}" in shown[-1]
    quiet = Console(file=StringIO(), force_jupyter=True, quiet=True)
    shown.clear()
    fit([ProgressDisplay(quiet)], log_every_steps=3)
    assert shown == []
