"""Gradients of one training step that leaves the weights alone."""

from __future__ import annotations

import pytest
import torch

from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.optimizers import OptimizerSet
from maskwright.training.step import TrainStep


class KeepGradients(OptimizerSet):
    """Leaves the weights alone, so that gradients can be compared."""

    def step(self, skip=None) -> None: ...


def build_step(model, optimizers, seed, max_norm, micro_batch_tokens=None):
    micro_batches = MicroBatches(micro_batch_tokens, is_alone=True, warn=pytest.fail)
    return TrainStep(Alone(model, Precision("fp32")), optimizers, World(), seed, max_norm, micro_batches)


def compute_gradients(model, batch, *, step=0, micro_batch_tokens=None, max_norm=None, mask_ratio=0.3):
    optimizers = KeepGradients([torch.optim.SGD(model.parameters(), lr=1.0)], model)
    train_step = build_step(model, optimizers, 7, max_norm, micro_batch_tokens)
    result = train_step(batch, step=step, epoch=0, mask_ratio=mask_ratio)
    return result, {name: param.grad.clone() for name, param in model.named_parameters()}
