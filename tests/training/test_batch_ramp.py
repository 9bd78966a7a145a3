"""Batches that grow, and a run that ends after a number of tokens."""

from __future__ import annotations

import pytest
import torch

from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.training.loop import Callback
from maskwright.training.state import count_batches_per_step
from maskwright.training.trainer import Trainer

_RAMP = {"batch_tokens_start": 32, "batch_tokens": 128, "batch_ramp_share": 0.5}


class Sizes(Callback):
    """How many batches each step took; saves at one step."""

    def __init__(self, folder=None, step=None):
        self.folder, self.step = folder, step
        self.sizes, self._before = [], 0

    def on_train_begin(self):
        self._before = self.trainer.state.num_batches

    def on_step_end(self, step):
        self.sizes.append(self.trainer.state.num_batches - self._before)
        self._before = self.trainer.state.num_batches
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


def build_trainer(model, **training):
    return Trainer(
        model, OptimizerConfig(learning_rate=1e-2), training=TrainingConfig(device="cpu", precision="fp32", **training)
    )


def test_the_number_of_batches_follows_the_progress():
    config = TrainingConfig(**_RAMP)
    assert [count_batches_per_step(config, progress) for progress in (0, 0.12, 0.13, 0.3, 0.4, 0.5, 1.0)] == [
        *(1, 1, 2, 3, 4, 4, 4)
    ]
    assert count_batches_per_step(TrainingConfig(), 0.7) == 1


def test_steps_take_more_and_more_batches_and_every_batch_once(build_model, build_loader):
    sizes, loader = Sizes(), build_loader(96, rows_per_batch=2)
    build_trainer(build_model(), **_RAMP).fit(loader, epochs=2, callbacks=[sizes], verbose=False)
    assert sum(sizes.sizes) == 2 * len(loader)
    assert sizes.sizes[0] == 1
    assert set(sizes.sizes) >= {1, 2, 3, 4}
    full = [size for size in sizes.sizes if size == 4]
    assert sorted(sizes.sizes)[-len(full) :] == full
    num_shrinking = sum(later < earlier for earlier, later in zip(sizes.sizes, sizes.sizes[1:], strict=False))
    assert num_shrinking <= 2, "only the last step of an epoch may be smaller"


@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.slow), 5, pytest.param(9, marks=pytest.mark.slow)])
def test_resume_inside_the_ramp_is_bit_equal(build_model, build_loader, tmp_path, step):
    loader, whole_sizes, rest_sizes = build_loader(96, rows_per_batch=2), Sizes(tmp_path, step), Sizes()
    whole, resumed = build_model(dropout=0.2), build_model(dropout=0.2, seed=3)
    build_trainer(whole, **_RAMP).fit(loader, epochs=2, callbacks=[whole_sizes], verbose=False)
    trainer = build_trainer(resumed, **_RAMP)
    trainer.load_checkpoint(tmp_path / f"step-{step}")
    trainer.fit(loader, epochs=2, callbacks=[rest_sizes], verbose=False)
    assert rest_sizes.sizes == whole_sizes.sizes[step:]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], tensor), name


@pytest.mark.parametrize(("max_tokens", "steps"), [(64, 1), (65, 2), (640, 10)])
def test_max_tokens_ends_the_run_padding_included(build_model, padded_batches, max_tokens, steps):
    trainer = build_trainer(build_model(), max_tokens=max_tokens)
    trainer.fit(padded_batches, epochs=99, verbose=False)
    assert trainer.state.step == steps
    assert trainer.state.num_places == steps * 64
    assert trainer.progress == 1.0
