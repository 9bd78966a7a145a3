"""Masks that follow the model's losses, in training: the table in checkpoints, exact resume, old checkpoints."""

from __future__ import annotations

import pytest
import torch

from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.callbacks import Callback
from maskwright.training.trainer import Trainer


class SaveAt(Callback):
    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


@pytest.fixture
def build_trainer(build_model):
    def build(strategy, **settings):
        model = build_model(dropout=0.2)
        options = {"update_every_steps": 3} if strategy == "adaptive" else {}
        model.masker = build_masker(60, 4, range(5), strategy=strategy, **options)
        model.set_token_counts(torch.arange(60))
        training = TrainingConfig(device="cpu", **settings)
        return Trainer(model, OptimizerConfig(learning_rate=1e-2), ScheduleConfig(), training, seed=5)

    return build


@pytest.mark.parametrize("step", [4, 6, 11])
def test_a_resumed_run_has_the_table_of_an_uninterrupted_one(tmp_path, build_trainer, build_loader, step):
    """Between two updates, right after one, and at the end of an epoch's last but one step."""
    whole = build_trainer("adaptive")
    whole.fit(build_loader(), epochs=2, callbacks=[SaveAt(tmp_path, step)], verbose=False)
    tables = whole.model.collect_tables(lambda tensor: tensor)
    assert tables["losses"].unique().numel() > 10, "the model has learnt what is hard"

    resumed = build_trainer("adaptive")
    resumed.load_checkpoint(tmp_path / f"step-{step}")
    resumed.fit(build_loader(), epochs=2, verbose=False)
    for name, table in resumed.model.collect_tables(lambda tensor: tensor).items():
        assert torch.equal(table, tables[name]), name
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_micro_batches_and_the_whole_batch_fill_the_same_counts(build_trainer, build_loader):
    counts = []
    for micro in (None, 16):
        trainer = build_trainer("adaptive", micro_batch_tokens=micro, max_steps=2)
        trainer.fit(build_loader(), epochs=1, verbose=False)
        counts.append(trainer.model.collect_tables(lambda tensor: tensor)["loss_counts"])
        assert trainer.state.num_overflowing == 0
    assert counts[0].sum() > 0
    assert torch.equal(*counts)


def test_evaluation_teaches_the_table_nothing(build_trainer, build_loader):
    trainer = build_trainer("adaptive")
    trainer.evaluate(build_loader())
    assert not trainer.model.collect_tables(lambda tensor: tensor)["loss_counts"].any()


def test_the_counts_of_masking_by_frequency_are_in_the_checkpoint(tmp_path, build_trainer, build_loader):
    trainer = build_trainer("frequency", max_steps=2)
    trainer.fit(build_loader(), epochs=1, verbose=False)
    trainer.save_checkpoint(tmp_path)
    other = build_trainer("frequency", max_steps=2)
    other.model.set_token_counts(torch.ones(60, dtype=torch.long))
    other.load_checkpoint(tmp_path / "step-2")
    assert torch.equal(other.model.collect_tables(lambda tensor: tensor)["counts"], torch.arange(60))


def test_a_run_keeps_the_strategy_it_was_begun_with(tmp_path, build_trainer, build_loader):
    trainer = build_trainer("frequency", max_steps=2)
    trainer.fit(build_loader(), epochs=1, verbose=False)
    trainer.save_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"another masking\.strategy than adaptive"):
        build_trainer("adaptive").load_checkpoint(tmp_path / "step-2")


def test_a_checkpoint_without_tables_still_loads(tmp_path, build_trainer, build_loader):
    """Those of other strategies, and of versions before there were any."""
    trainer = build_trainer("token", max_steps=2)
    trainer.fit(build_loader(), epochs=1, verbose=False)
    trainer.save_checkpoint(tmp_path)
    assert not (tmp_path / "step-2" / "masking.safetensors").exists()
    build_trainer("adaptive").continue_from(tmp_path / "step-2", optimizer="kept")


def test_a_saved_model_masks_by_token(tmp_path, build_trainer):
    trainer = build_trainer("adaptive")
    trainer.model.save_pretrained(tmp_path)
    assert type(trainer.model).from_pretrained(tmp_path).masker.strategy == "token"
