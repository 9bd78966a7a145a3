"""The moving average of the weights: its formula, and that it is what is evaluated, saved and resumed."""

from __future__ import annotations

import pytest
import torch

from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.callbacks import EarlyStopping, ModelCheckpoint
from maskwright.training.held_out import evaluate
from maskwright.training.loop import Callback
from maskwright.training.optim.average import WeightAverage
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms, rounding

DECAY = 0.8
NUM_TERMS = count_terms(num_layers=1, width=16, length=16)


def build_trainer(model, **training):
    config = TrainingConfig(device="cpu", precision="fp32", average_decay=DECAY, **training)
    return Trainer(model, OptimizerConfig(learning_rate=2e-2), ScheduleConfig(warmup_share=0.0), config)


class Follow(Callback):
    """Keeps an average of its own, in double precision, and the last raw weights."""

    def __init__(self):
        self.average = None

    def on_train_begin(self):
        self.average = {name: param.detach().double() for name, param in self.trainer.model.named_parameters()}

    def on_step_end(self, step):
        self.raw = {name: param.detach().clone() for name, param in self.trainer.model.named_parameters()}
        kept = min(DECAY, step / (9 + step))
        for name, param in self.raw.items():
            self.average[name] = kept * self.average[name] + (1 - kept) * param.double()


class SaveAt(Callback):
    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


def assert_same(model, weights, num_steps):
    assert_rounded(dict(model.named_parameters()), weights, num_steps)


def test_the_final_model_has_the_average_of_the_weights_after_each_step(build_model, padded_batches):
    follow = Follow()
    model = build_model()
    build_trainer(model).fit(padded_batches, epochs=2, callbacks=[follow], verbose=False)
    assert_same(model, follow.average, num_steps=2 * len(padded_batches))
    assert any(not torch.equal(param, follow.raw[name]) for name, param in model.named_parameters())


def test_a_skipped_step_leaves_the_average_alone():
    layer = torch.nn.Linear(2, 2)
    average = WeightAverage(layer, DECAY)
    before = {name: tensor.clone() for name, tensor in average.tensors().items()}
    with torch.no_grad():
        layer.weight.add_(1.0)
    average.update(torch.tensor(1.0), num_steps=5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in average.tensors().items())
    average.update(torch.tensor(0.0), num_steps=5)
    assert not torch.equal(average.tensors()["weight"], before["weight"])


@pytest.mark.parametrize(("num_steps", "kept"), [(0, 0.1), (10, 0.55), (1000, DECAY)])
def test_the_average_keeps_less_of_itself_in_the_first_steps(num_steps, kept):
    layer = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    average = WeightAverage(layer, DECAY)
    with torch.no_grad():
        layer.weight.fill_(0.0)
    average.update(torch.tensor(0.0), num_steps)
    assert average.tensors()["weight"].item() == pytest.approx(kept)


def test_evaluation_uses_the_average_and_training_goes_on_from_the_weights(build_model, build_loader):
    validation, follow, model = build_loader(10, seed=1), Follow(), build_model()
    history = build_trainer(model).fit(build_loader(), validation, epochs=2, callbacks=[follow], verbose=False).history
    assert history["val_loss"][-1] == evaluate(model, validation.epoch(0)).loss
    unevaluated = Follow()
    build_trainer(build_model()).fit(build_loader(), epochs=2, callbacks=[unevaluated], verbose=False)
    assert all(torch.equal(follow.raw[name], raw) for name, raw in unevaluated.raw.items())


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 6, pytest.param(8, marks=pytest.mark.slow)])
def test_a_resumed_average_is_bit_equal(build_model, padded_batches, tmp_path, step):
    whole, resumed = build_model(dropout=0.2), build_model(seed=9, dropout=0.2)
    build_trainer(whole).fit(padded_batches, epochs=2, callbacks=[SaveAt(tmp_path, step)], verbose=False)
    trainer = build_trainer(resumed)
    trainer.load_checkpoint(tmp_path / f"step-{step}")
    trainer.fit(padded_batches, epochs=2, verbose=False)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name


def test_saved_models_of_callbacks_have_the_average(build_model, build_loader, tmp_path):
    model, validation = build_model(), build_loader(10, seed=1)
    saving = ModelCheckpoint(tmp_path / "epoch{epoch}")
    stopping = EarlyStopping(restore_best_weights=True, patience=5, best_folder=tmp_path / "best")
    trainer = build_trainer(model)
    history = trainer.fit(build_loader(), validation, epochs=3, callbacks=[saving, stopping], verbose=False).history
    for epoch, loss in enumerate(history["val_loss"], start=1):
        saved = MaskedLanguageModel.from_pretrained(tmp_path / f"epoch{epoch}")
        assert evaluate(saved, validation.epoch(0)).loss == pytest.approx(loss, rel=rounding(NUM_TERMS))
    assert evaluate(model, validation.epoch(0)).loss == pytest.approx(min(history["val_loss"]), rel=rounding(NUM_TERMS))


def test_a_second_fit_averages_from_the_model_it_finds(build_model, padded_batches):
    model, follow = build_model(), Follow()
    trainer = build_trainer(model)
    trainer.fit(padded_batches, epochs=1, verbose=False)
    trainer.fit(padded_batches, epochs=1, callbacks=[follow], verbose=False)
    assert_same(model, follow.average, num_steps=len(padded_batches))
