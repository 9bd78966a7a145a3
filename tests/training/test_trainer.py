from __future__ import annotations

import math
import time

import pytest
import torch
from torch.utils.data import DataLoader

from maskwright.batch import as_packed
from maskwright.errors import InputError, RunError
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.batches import advise_faster
from maskwright.training.held_out import evaluate
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms, rounding

FAST = OptimizerConfig(learning_rate=2e-2)
NUM_TERMS = count_terms(num_layers=1, width=16, length=16)


def build_trainer(model, *, optimizer=FAST, schedule=None, mask_ratio=None, seed=0, **training):
    schedule = schedule or ScheduleConfig(warmup_share=0.0)
    config = TrainingConfig(device="cpu", **training)
    return Trainer(model, optimizer, schedule, config, mask_ratio=mask_ratio, seed=seed)


class Recorder(Callback):
    """Writes down every call."""

    def __init__(self, name="", events=None):
        self.name = name
        self.events = [] if events is None else events
        self.lines = []

    def on_train_begin(self):
        self.events.append((self.name, "train_begin"))

    def on_step_end(self, step):
        self.events.append((self.name, "step_end", step))

    def on_log(self, metrics):
        self.lines.append(dict(metrics))
        self.events.append((self.name, "log", metrics["step"]))

    def on_epoch_end(self, epoch, metrics):
        self.events.append((self.name, "epoch_end", epoch))

    def on_train_end(self):
        self.events.append((self.name, "train_end"))

    def close(self):
        self.events.append((self.name, "close"))


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.stop_training = True


def test_history_has_a_value_per_epoch(build_model, build_loader):
    history = build_trainer(build_model()).fit(build_loader(), build_loader(8, seed=1), epochs=3).history
    assert set(history) == {"loss", "mlm_accuracy", "val_loss", "val_mlm_accuracy"}
    assert all(len(values) == 3 for values in history.values())


def test_history_without_validation(build_model, build_loader):
    history = build_trainer(build_model()).fit(build_loader(), epochs=2).history
    assert {name: len(values) for name, values in history.items()} == {"loss": 2, "mlm_accuracy": 2}


def test_epochs_default_to_the_configuration(build_model, build_loader):
    assert len(build_trainer(build_model(), epochs=2).fit(build_loader()).history["loss"]) == 2


@pytest.mark.parametrize("type", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_loss_falls_on_a_learnable_corpus(build_model, type):
    """Four sentences without a common token: a guess among all 55 costs 4.0, one among four 1.4."""
    sentences = torch.tensor([[2, *range(start, start + 8), 3] for start in (5, 15, 25, 35)])
    trainer = build_trainer(build_model(mask_ratio=0.3), optimizer=OptimizerConfig(type=type, learning_rate=1e-2))
    history = trainer.fit([{"input_ids": sentences}], epochs=120).history
    assert history["loss"][0] > 3.5
    assert sum(history["loss"][-10:]) / 10 < 2.0
    assert sum(history["mlm_accuracy"][-10:]) / 10 > 0.1


def test_epoch_loss_is_the_mean_over_all_masked_tokens(build_model, padded_batches):
    """With a learning rate of almost 0 an epoch's loss is that of the first weights under the epoch's masks."""
    model = build_model(mask_ratio=0.4)
    still = OptimizerConfig(learning_rate=1e-30, weight_decay=0.0)
    history = build_trainer(model, optimizer=still, seed=3).fit(padded_batches, epochs=1).history
    expected = evaluate(model, map(as_packed, padded_batches), mask_ratio=0.4, seed=3)
    assert history["loss"][0] == pytest.approx(expected.loss, rel=rounding(NUM_TERMS))
    assert history["mlm_accuracy"][0] == pytest.approx(expected.accuracy)


def test_validation_figures_are_those_of_evaluate(build_model, build_loader):
    model, validation = build_model(), build_loader(10, seed=2)
    history = build_trainer(model).fit(build_loader(), validation, epochs=1).history
    expected = evaluate(model, validation.epoch(0))
    assert history["val_loss"][-1] == expected.loss
    assert history["val_mlm_accuracy"][-1] == expected.accuracy


def test_lists_data_loaders_and_packed_batches_train_alike(build_model, padded_batches):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, row):
            return {name: tensor[row % 4] for name, tensor in padded_batches[row // 4].items()}

    results = []
    for train in (padded_batches, DataLoader(Rows(), batch_size=4), [as_packed(batch) for batch in padded_batches]):
        results.append(build_trainer(build_model()).fit(train, epochs=2).history)
    assert results[0] == results[1] == results[2]


def test_max_steps_ends_the_run_within_an_epoch(build_model, build_loader):
    trainer = build_trainer(build_model(), max_steps=5)
    history = trainer.fit(build_loader(rows_per_batch=2), epochs=100)
    assert trainer.state.step == 5
    assert len(history.history["loss"]) == 1
    assert trainer.progress == 1.0


@pytest.mark.parametrize("is_compiled", [True, False])
def test_the_clock_leaves_out_the_first_step_where_it_compiles(build_model, build_loader, monkeypatch, is_compiled):
    trainer = build_trainer(build_model(), max_steps=2)
    monkeypatch.setattr(trainer.engine, "is_compiled", is_compiled)
    begin, now_s = trainer.engine.begin, [100.0]
    monkeypatch.setattr("maskwright.training.loop.time.monotonic", lambda: now_s[0])

    def begin_slowly(*arguments):
        step = begin(*arguments)

        def run(*batch, **options):
            now_s[0] += 30.0 if trainer.first_step_s is None else 2.0
            return step(*batch, **options)

        return run

    monkeypatch.setattr(trainer.engine, "begin", begin_slowly)
    trainer.fit(build_loader(), verbose=False)
    assert trainer.first_step_s == 30.0
    assert trainer.state.elapsed_s == (2.0 if is_compiled else 32.0)


def test_max_seconds_ends_the_run(build_model, build_loader):
    trainer = build_trainer(build_model(), max_seconds=0.3)
    trainer.fit(build_loader(), epochs=10**9)
    assert trainer.state.elapsed_s >= 0.3
    assert trainer.state.step >= 1
    assert trainer.progress == 1.0


def test_stream_without_length_needs_a_limit(build_model, padded_batches):
    def stream():
        while True:
            yield from padded_batches

    with pytest.raises(InputError, match="max_steps"):
        build_trainer(build_model()).fit(stream(), epochs=1)
    trainer = build_trainer(build_model(), max_steps=9)
    trainer.fit(stream(), epochs=1)
    assert trainer.state.step == 9


def test_stream_that_runs_dry_is_named_rather_than_counted_as_loss_zero(build_model, padded_batches):
    with pytest.raises(InputError, match="no batch in epoch 2"):
        build_trainer(build_model(), max_steps=100).fit(iter(padded_batches), epochs=3)


def test_empty_data_and_validation_that_is_read_once_are_refused(build_model, padded_batches):
    with pytest.raises(InputError, match="no batch"):
        build_trainer(build_model()).fit([], epochs=1)
    with pytest.raises(InputError, match="validation"):
        build_trainer(build_model()).fit(padded_batches, iter(padded_batches), epochs=2)
    with pytest.raises(InputError, match="initial_epoch"):
        build_trainer(build_model()).fit(padded_batches, epochs=2, initial_epoch=2)


def test_initial_epoch_trains_the_rest_with_their_own_masks(build_model, padded_batches):
    recorder = Recorder()
    trainer = build_trainer(build_model())
    history = trainer.fit(padded_batches, epochs=5, initial_epoch=3, callbacks=[recorder])
    assert [event[2] for event in recorder.events if event[1] == "epoch_end"] == [3, 4]
    assert len(history.history["loss"]) == 2
    assert trainer.progress == 1.0
    from_zero = build_trainer(build_model()).fit(padded_batches, epochs=2)
    assert from_zero.history["loss"] != history.history["loss"]


def test_a_second_fit_is_a_run_of_its_own(build_model, padded_batches):
    """It has a whole schedule and a new history, and goes on from the weights."""
    recorder = Recorder()
    trainer = build_trainer(build_model(mask_ratio=1.0), log_every_steps=1)
    first = trainer.fit(padded_batches[:1] * 6, epochs=2)
    second = trainer.fit(padded_batches[:1] * 6, epochs=4, initial_epoch=2, callbacks=[recorder])
    assert len(first.history["loss"]) == len(second.history["loss"]) == 2
    assert second.history["loss"][0] < first.history["loss"][1]
    assert recorder.lines[0]["lr"] == pytest.approx(FAST.learning_rate)
    assert [line["step"] for line in recorder.lines] == list(range(1, 13))


def test_callbacks_are_called_in_order(build_model, padded_batches):
    events = []
    first, second = Recorder("a", events), Recorder("b", events)
    build_trainer(build_model(), log_every_steps=2).fit(padded_batches[:3], epochs=2, callbacks=[first, second])
    assert [event[1:] for event in events if event[0] == "a"] == [
        ("train_begin",),
        ("step_end", 1),
        ("log", 2),
        ("step_end", 2),
        ("log", 3),  # the end of an epoch has a line
        ("step_end", 3),
        ("epoch_end", 0),
        ("log", 4),
        ("step_end", 4),
        ("step_end", 5),
        ("log", 6),
        ("step_end", 6),
        ("epoch_end", 1),
        ("train_end",),
        ("close",),
    ]
    calls = [event for event in events if event[1] != "close"]
    assert calls[0::2] == [("a", *event[1:]) for event in calls[1::2]]
    assert {event[0] for event in calls[1::2]} == {"b"}


def test_log_lines_say_where_the_run_stands(build_model, padded_batches):
    recorder = Recorder()
    trainer = build_trainer(build_model(mask_ratio=0.2), log_every_steps=4, max_steps=8)
    trainer.fit(padded_batches, epochs=2, callbacks=[recorder])
    assert [line["step"] for line in recorder.lines] == [4, 6, 8]
    assert [line["epoch"] for line in recorder.lines] == [0, 0, 1]
    assert [line["progress"] for line in recorder.lines] == [0.5, 0.75, 1.0]
    tokens = [int(batch["attention_mask"].sum()) for batch in padded_batches]
    assert [line["tokens"] for line in recorder.lines] == [sum(tokens[:4]), sum(tokens), sum(tokens) + sum(tokens[:2])]
    for line in recorder.lines:
        assert set(line) == {
            *("step", "epoch", "tokens", "loss", "mlm_accuracy", "grad_norm", "tokens_per_s"),
            *("data_wait", "skipped_steps", "lr", "mask_ratio", "progress", "elapsed_s"),
        }
        assert line["mask_ratio"] == 0.2
        assert line["tokens_per_s"] > 0


def test_user_callback_can_stop_the_run(build_model, padded_batches):
    trainer = build_trainer(build_model())
    history = trainer.fit(padded_batches, epochs=5, callbacks=[StopAt(8)])
    assert trainer.state.step == 8
    assert len(history.history["loss"]) == 2


def test_callbacks_are_closed_after_an_error(build_model, padded_batches):
    class Failing(Callback):
        def on_step_end(self, step):
            raise ValueError("mine")

    recorder = Recorder()
    with pytest.raises(ValueError, match="mine"):
        build_trainer(build_model()).fit(padded_batches, epochs=1, callbacks=[recorder, Failing()])
    assert recorder.events[-1] == ("", "close")
    assert ("", "train_end") not in recorder.events


class Poison(Callback):
    def __init__(self, poisoned_step):
        self.poisoned_step = poisoned_step

    def on_step_end(self, step):
        if step == self.poisoned_step:
            with torch.no_grad():
                self.trainer.model.mlm_dense.weight.fill_(math.nan)


def test_bad_steps_in_a_row_end_the_run_with_a_diagnosis(build_model, padded_batches):
    trainer = build_trainer(
        build_model(), log_every_steps=1, max_bad_steps=3, schedule=ScheduleConfig(type="constant", warmup_steps=0)
    )
    expected = r"not finite in 3 steps in a row.* step 4 \(learning rate 2\.00e-02, gradient norm nan, samples -?\d+, "
    with pytest.raises(RunError, match=expected):
        trainer.fit(padded_batches, epochs=1, callbacks=[Poison(2)])
    assert trainer.state.num_skipped == 3


def test_an_epoch_of_bad_steps_alone_ends_the_run_however_short(build_model, padded_batches):
    model = build_model()
    with torch.no_grad():
        model.mlm_dense.weight.fill_(math.nan)
    with pytest.raises(RunError, match="6 steps in a row"):
        build_trainer(model, log_every_steps=1000).fit(padded_batches, epochs=1)


def test_mask_ratio_follows_the_callable(build_model, padded_batches):
    recorder, seen = Recorder(), []

    def ratio(progress):
        seen.append(progress)
        return 0.9 - 0.8 * progress

    trainer = build_trainer(build_model(), mask_ratio=ratio, log_every_steps=1)
    corrupted_shares = []
    corrupt = trainer.model.corrupt

    def record(batch, *arguments):
        corrupted = corrupt(batch, *arguments)
        corrupted_shares.append(float(corrupted.selected.sum() / (batch.input_ids > 4).sum()))
        return corrupted

    trainer.model.corrupt = record
    trainer.fit(padded_batches, epochs=1, callbacks=[recorder])
    assert seen == pytest.approx([step / 6 for step in range(6)])
    assert [line["mask_ratio"] for line in recorder.lines] == pytest.approx([0.9 - 0.8 * step / 6 for step in range(6)])
    assert corrupted_shares == pytest.approx([0.9 - 0.8 * step / 6 for step in range(6)], abs=0.08)


def test_learning_rate_follows_the_schedule(build_model, padded_batches):
    recorder = Recorder()
    schedule = ScheduleConfig(type="polynomial_decay", warmup_steps=3, warmup_start_lr=0.0, alpha=0.0)
    trainer = build_trainer(build_model(), schedule=schedule, log_every_steps=1)
    trainer.fit(padded_batches, epochs=2, callbacks=[recorder])
    peak = FAST.learning_rate
    expected = [0, peak / 3, 2 * peak / 3, *(peak * (12 - step) / 9 for step in range(3, 12))]
    assert [line["lr"] for line in recorder.lines] == pytest.approx(expected)


def test_micro_batches_train_like_whole_batches(build_model, build_loader):
    whole, micro = build_model(), build_model()
    # Steps in proportion to gradients: Adam's blow up what rounding leaves of a gradient of 0.
    plain = OptimizerConfig(type="sgd", learning_rate=0.1)
    trainer = build_trainer(whole, optimizer=plain)
    trainer.fit(build_loader(), epochs=1)
    build_trainer(micro, optimizer=plain, micro_batch_tokens=16).fit(build_loader(), epochs=1)
    num_terms = trainer.state.step * 2 * NUM_TERMS
    assert_rounded(dict(micro.named_parameters()), dict(whole.named_parameters()), num_terms)


def test_validation_leaves_training_as_it_was(build_model, build_loader):
    plain, validated = build_model(dropout=0.2), build_model(dropout=0.2)
    build_trainer(plain).fit(build_loader(), epochs=2)
    build_trainer(validated).fit(build_loader(), build_loader(10, seed=1), epochs=2)
    assert all(torch.equal(param, validated.get_parameter(name)) for name, param in plain.named_parameters())


def test_unknown_device_is_refused(build_model):
    with pytest.raises(InputError, match=r"training\.device is 'gpu'"):
        Trainer(build_model(), training=TrainingConfig(device="gpu"))


class Listener(Recorder):
    def __init__(self):
        super().__init__()
        self.warnings = []

    def on_warning(self, message):
        self.warnings.append(message)


def test_an_epoch_that_chose_no_token_has_figures_and_one_warning(build_model):
    """Of one token at 40% many epochs choose none, and the fixed masks of the evaluation, at 15%, never do."""
    listener, model = Listener(), build_model(mask_ratio=0.4)
    trainer = build_trainer(model, log_every_steps=1)
    batch = {"input_ids": torch.tensor([[2, 30, 3]]), "sample_ids": torch.tensor([0])}
    history = trainer.fit([batch], [batch], epochs=8, callbacks=[listener], verbose=False).history
    chosen = [int(model.corrupt(as_packed(batch), 0, epoch).counts) for epoch in range(8)]
    assert 0 < sum(chosen) < 8
    assert set(history) == {"loss", "mlm_accuracy", "val_loss", "val_mlm_accuracy"}
    assert all(math.isfinite(value) and len(series) == 8 for series in history.values() for value in series)
    assert len(listener.lines) == sum(chosen)
    assert all(math.isfinite(line["loss"]) for line in listener.lines)
    training, validation = sorted(listener.warnings, key=lambda message: "validation" in message)
    assert "none of the 1 tokens of the training data was chosen" in training
    assert "none of the 1 tokens of the validation data was chosen" in validation


@pytest.mark.parametrize("which", ["training", "validation"])
def test_data_without_a_token_to_mask_is_refused(build_model, build_loader, which):
    specials = [torch.tensor([[2, 1, 1, 3]])]
    train, validation = (specials, None) if which == "training" else (build_loader(), specials)
    with pytest.raises(InputError, match=f"no token of the {which} data can be asked for"):
        build_trainer(build_model()).fit(train, validation, epochs=2, verbose=False)


@pytest.mark.parametrize("wrong_id", [-1, 60])
def test_ids_that_the_model_does_not_have_are_named(build_model, wrong_id):
    batch = torch.tensor([[2, 30, wrong_id, 3]])
    trainer = build_trainer(build_model())
    with pytest.raises(InputError, match=rf"the token id {wrong_id}, the model's vocab_size is 60 \(ids 0 to 59\)"):
        trainer.fit([batch], epochs=1, verbose=False)
    assert trainer.state.step == 0
    with pytest.raises(InputError, match=f"the token id {wrong_id}"):
        evaluate(build_model(), [as_packed(batch)])


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


class TimedBatches:
    """Batches that take so long to come, each in turn."""

    def __init__(self, batches, clock, waits_s):
        self.batches, self.clock, self.waits_s = batches, clock, iter(waits_s)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.clock.now_s += next(self.waits_s)
            yield batch


class Working(Callback):
    """Time that a step takes, and what the run was warned of after which step."""

    def __init__(self, clock, work_s):
        self.clock, self.work_s, self.warnings = clock, work_s, []

    def on_step_end(self, step):
        self.clock.now_s += self.work_s

    def on_warning(self, message):
        self.warnings.append((self.trainer.state.step, message))


def fit_timed(model, batches, monkeypatch, waits_s, work_s, **options):
    clock = Clock(monkeypatch)
    watch = Working(clock, work_s)
    timed = TimedBatches(batches, clock, waits_s)
    for name, value in options.items():
        setattr(timed, name, value)
    build_trainer(model, log_every_steps=1).fit(timed, epochs=2, callbacks=[watch], verbose=False)
    return watch.warnings


def test_a_run_that_waits_for_data_says_so_once_with_what_to_do(build_model, padded_batches, monkeypatch):
    # Of every 5 s after the first line 4.8 are lost: more than 10 in all at the fourth step.
    (warning,) = fit_timed(build_model(), padded_batches, monkeypatch, [4.8] * 12, work_s=0.2)
    assert warning[0] == 4
    assert "96% of the time went into waiting for data; tokenize once before training" in warning[1]


def test_the_advice_is_the_loaders_own(build_model, padded_batches, monkeypatch):
    warnings = fit_timed(build_model(), padded_batches, monkeypatch, [5.0] * 12, work_s=0.0, faster_advice="buy a disk")
    assert [message for _, message in warnings] == ["100% of the time went into waiting for data; buy a disk"]


@pytest.mark.parametrize(
    ("waits_s", "work_s"),
    [
        pytest.param([60.0] + [0.1] * 11, 1.0, id="a first batch that takes long"),
        pytest.param([4.0] * 12, 6.0, id="less than half of the time"),
        pytest.param([0.5] * 12, 0.0, id="a run too short to care"),
    ],
)
def test_a_run_that_hardly_waits_for_data_says_nothing(build_model, padded_batches, monkeypatch, waits_s, work_s):
    assert fit_timed(build_model(), padded_batches, monkeypatch, waits_s, work_s) == []


def test_a_data_loader_is_told_of_its_workers(padded_batches):
    assert "num_workers (it has 0)" in advise_faster(DataLoader(padded_batches))
