"""The answers to all examples of a loader. B rows, N documents of a row, C outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.model import TaskModel
from maskwright.tasks.pooling import pool
from maskwright.training.modes import evaluation_mode
from maskwright.training.world import World


@torch.no_grad()
def predict_examples(
    model: TaskModel, loader: TaskLoader, world: World | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Logits (examples, C) in the order of the examples.

    With several processes each answers its share of the rows, and `device` is where they exchange their answers.
    """
    answers = torch.zeros(loader.num_examples, model.task.num_outputs, device=device)
    own_device = next(model.parameters()).device
    with evaluation_mode(model):
        for batch in loader.epoch(0):
            batch = batch.to(own_device)
            logits = model.predict(batch)
            numbers = pool(batch.sample_ids[..., None], batch, logits.shape[1], "cls")[..., 0]
            places = torch.arange(1, logits.shape[1] + 1, device=own_device)
            is_there = places <= batch.document_ids.amax(1, keepdim=True)
            answers[numbers[is_there].to(device)] = logits[is_there].float().to(device)
    return (world or World()).sum(answers).cpu()
