"""The answers to all examples of a loader. B rows, N documents of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.objectives.loss import LossSums
from maskwright.tasks.batch import TaskBatch
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.model import TaskModel
from maskwright.tasks.pooling import pool
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.distributed.world import World
from maskwright.training.micro_batches import MicroBatches


@dataclass(frozen=True)
class Answers:
    sums: list[float]
    """Of losses, counts and figures."""
    values: Tensor
    """(examples, ...): what the task keeps of each answer, in the order of the examples."""


@torch.no_grad()
def answer_examples(
    model: TaskModel,
    loader: TaskLoader,
    world: World | None = None,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = lambda message: None,
) -> Answers:
    """With several processes each answers its share of the rows, and `device` is where they exchange their answers.

    Out of memory, batches are answered in parts, and `warn` is told.
    """
    world = world or World()
    micro_batches = MicroBatches(None, True, warn, is_training=False)  # processes do not wait for each other in a batch
    sums = torch.zeros(model.num_sums, dtype=torch.float64, device=device)
    answers: Tensor | None = None
    own_device = next(model.parameters()).device

    def answer(parts: list[PackedBatch]) -> list[tuple[TaskBatch, LossSums, Tensor]]:
        answered = []
        for part in parts:
            part = part.to(own_device)
            assert isinstance(part, TaskBatch)
            answered.append((part, *model.answer(part)))
        return answered

    with evaluation_mode(model):
        for batch, batch_sums, values in chain.from_iterable(
            micro_batches.run(batch, answer) for batch in loader.epoch(0)
        ):
            sums += torch.cat([batch_sums.losses, batch_sums.counts, batch_sums.figures]).to(device)
            if answers is None:
                answers = torch.zeros(loader.num_examples, *values.shape[2:], device=device)
            numbers = pool(batch.sample_ids[..., None], batch, values.shape[1], "cls")[..., 0]
            places = torch.arange(1, values.shape[1] + 1, device=own_device)
            is_there = places <= batch.document_ids.amax(1, keepdim=True)
            answers[numbers[is_there].to(device)] = values[is_there].float().to(device)
    assert answers is not None, "a loader has examples"
    return Answers(world.sum(sums).tolist(), world.sum(answers).cpu())
