"""Batches of examples with rows added, put together or shared out: the same questions, the same loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from task_lab import Lab

from maskwright.batch import concatenate, from_padded
from maskwright.errors import InputError
from maskwright.objectives.objective import TokenObjective
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.loader import TaskBatch
from maskwright.tasks.model import TaskModel
from maskwright.training.batches import take_share
from maskwright.training.distributed.world import World
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=128)


@pytest.fixture(params=["classification", "multi-label", "regression"])
def inputs(request: pytest.FixtureRequest, lab: Lab) -> TaskInputs:
    columns = {"classification": "label", "multi-label": "labels", "regression": "score"}
    config = lab.config(request.param, label_column=columns[request.param])
    return load_task_inputs(config, lambda text: None)


@pytest.fixture
def model(inputs: TaskInputs) -> TaskModel:
    return inputs.build_model(seed=0).double().eval()


def build_batches(inputs: TaskInputs) -> list[TaskBatch]:
    """One of short examples and one of long ones, in rows of one length and with other numbers of documents."""
    loader = inputs.train
    by_length = np.argsort(loader.features.sizes, kind="stable")
    batches = [loader.build_batch(by_length[:30]), loader.build_batch(by_length[30:])]
    assert len({batch.input_ids.shape[1] for batch in batches}) == 1
    assert len({batch.known_targets.shape[1] for batch in batches}) == 2
    return batches


def ask(model: TaskModel, batches: Sequence[TaskBatch]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Counts before the model runs, then losses and counts with figures, summed over batches."""
    asked = [model.ask(batch, seed=0, epoch=0) for batch in batches]
    sums = [model.loss_sums(one) for one in asked]
    return (
        torch.stack([one.counts for one in asked]).sum(0),
        torch.stack([one.losses for one in sums]).sum(0),
        torch.stack([torch.cat([one.counts.double(), one.figures.double()]) for one in sums]).sum(0),
    )


def assert_same(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    assert torch.equal(found[0], expected[0])
    assert_rounded(found[1], expected[1], NUM_TERMS, dtype=torch.float32)  # a loss is computed in fp32
    assert_rounded(found[2], expected[2], NUM_TERMS, dtype=torch.float32)


def test_rows_that_fill_a_batch_up_ask_nothing(inputs: TaskInputs, model: TaskModel) -> None:
    batch = build_batches(inputs)[0]
    filled = batch.fill_up(batch.num_rows + 3)
    assert isinstance(filled, TaskBatch)
    assert filled.num_rows == batch.num_rows + 3
    assert int(filled.is_asked.sum()) == int(batch.is_asked.sum()) == 30
    assert_same(ask(model, [filled]), ask(model, [batch]))


def test_batches_of_other_numbers_of_documents_are_one(inputs: TaskInputs, model: TaskModel) -> None:
    batches = build_batches(inputs)
    joined = concatenate(batches)
    assert joined.num_rows == sum(batch.num_rows for batch in batches)
    assert int(joined.is_asked.sum()) == 64
    assert_same(ask(model, [joined]), ask(model, batches))


@pytest.mark.parametrize("size", [2, 4, 5])
def test_processes_that_share_a_batch_have_its_loss_together(inputs: TaskInputs, model: TaskModel, size: int) -> None:
    batch = build_batches(inputs)[1]
    assert batch.num_rows % size, "the test needs a row of padding"
    shares = [take_share(batch, World(rank, size)) for rank in range(size)]
    assert len({share.num_rows for share in shares}) == 1
    assert_same(ask(model, shares), ask(model, [batch]))


def test_a_task_masks_nothing_and_says_so(inputs: TaskInputs, model: TaskModel) -> None:
    assert not isinstance(model, TokenObjective)
    assert model.mask_ratio is None
    batch = build_batches(inputs)[0]
    assert model.ask(batch, 0, 0).batch is batch
    with pytest.raises(InputError, match="a task learns from batches with targets"):
        model.ask(from_padded(batch.input_ids), 0, 0)
