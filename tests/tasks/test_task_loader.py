"""Batches of examples: so many of each, all of them, with their own targets, whatever the number of processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from task_lab import Lab

from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.heads import count_documents
from maskwright.tasks.loader import AskedBatch, TaskBatch, TaskLoader
from maskwright.tasks.model import answer_examples
from tolerances import assert_rounded, count_terms, rounding


@pytest.fixture(params=["text", "pair"])
def inputs(request: pytest.FixtureRequest, lab: Lab) -> TaskInputs:
    second = "other" if request.param == "pair" else None
    return load_task_inputs(lab.config(batch_size=10, second_column=second), lambda text: None)


def list_batches(loader: TaskLoader, epoch: int = 0, start_batch: int = 0) -> list[TaskBatch]:
    batches = list(loader.epoch(epoch, start_batch))
    assert all(isinstance(batch, TaskBatch) for batch in batches)
    return [batch for batch in batches if isinstance(batch, TaskBatch)]


def list_examples(batch: TaskBatch) -> dict[int, int]:
    """The target of each example, found at the document of its number."""
    found = {}
    for row in range(batch.num_rows):
        for document in range(1, int(batch.document_ids[row].max()) + 1):
            (number,) = batch.sample_ids[row][batch.document_ids[row] == document].unique().tolist()
            found[number] = int(batch.known_targets[row, document - 1])
    return found


def test_every_example_comes_once_an_epoch_with_its_own_target(inputs: TaskInputs) -> None:
    found = [list_examples(batch) for batch in list_batches(inputs.train)]
    assert [len(one) for one in found] == [10] * 6 + [4]
    assert len(found) == len(inputs.train)
    joined = {number: target for one in found for number, target in one.items()}
    assert joined == dict(enumerate(inputs.train.targets.tolist()))


def test_an_example_reads_as_the_tokenizer_writes_it(inputs: TaskInputs) -> None:
    batch = inputs.train.build_batch(np.array([5]))
    example = inputs.train.features.examples[5]
    expected = inputs.tokenizer.backend.encode(example.text, example.second)
    assert batch.input_ids[0].tolist() == expected.ids
    assert (batch.token_type_ids is None) == (example.second is None)
    if batch.token_type_ids is not None:
        assert batch.token_type_ids[0].tolist() == expected.type_ids


def test_the_order_is_that_of_seed_and_epoch_and_can_be_entered_anywhere(inputs: TaskInputs) -> None:
    orders = {
        (seed, epoch): tuple(
            number for one in list_batches(inputs.train.with_seed(seed), epoch) for number in list_examples(one)
        )
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    whole, tail = list_batches(inputs.train, 1), list_batches(inputs.train, 1, start_batch=3)
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(whole[3:], tail, strict=True))
    held_out = [number for one in list_batches(inputs.validation) for number in sorted(list_examples(one))]
    assert held_out == list(range(inputs.validation.num_examples))


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_rows_of_every_batch(inputs: TaskInputs, world_size: int) -> None:
    shares = [list_batches(inputs.train.for_rank(rank, world_size)) for rank in range(world_size)]
    for whole, *parts in zip(list_batches(inputs.train), *shares, strict=True):
        assert len({(part.num_rows, part.input_ids.shape[1]) for part in parts}) == 1
        joined = {number: target for part in parts for number, target in list_examples(part).items()}
        assert joined == list_examples(whole)
        assert sum(int(AskedBatch.of(part).counts) for part in parts) == len(joined)


def test_predictions_come_in_the_order_of_the_examples(inputs: TaskInputs) -> None:
    model = inputs.build_model(seed=0).eval()
    found = answer_examples(model, inputs.validation).values
    for number in (0, 7, inputs.validation.num_examples - 1):
        alone = model.predict(inputs.validation.build_batch(np.array([number])))
        assert_rounded(found[number], alone[0, 0], count_terms(num_layers=2, width=32, length=32), magnitude=1.0)


def test_out_of_memory_examples_are_answered_in_smaller_parts(lab: Lab) -> None:
    inputs = load_task_inputs(lab.config(batch_size=100), lambda text: None)
    assert list_batches(inputs.validation)[0].num_rows > 1
    model, warnings = inputs.build_model(seed=0).eval(), list[str]()
    expected, answer = answer_examples(model, inputs.validation), model.answer

    def limited(batch: TaskBatch) -> Any:
        if batch.num_rows > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return answer(batch)

    model.answer = limited  # type: ignore[method-assign]
    found = answer_examples(model, inputs.validation, warn=warnings.append)
    num_terms = count_terms(num_layers=2, width=32, length=32)
    assert_rounded(found.values, expected.values, num_terms, magnitude=1.0)
    num_parts = len(model.part_weights)
    assert found.sums[num_parts : 2 * num_parts] == expected.sums[num_parts : 2 * num_parts], "the counts"
    assert found.sums[0] == pytest.approx(expected.sums[0], rel=rounding(num_terms))
    assert "in an evaluation; going on with" in warnings[-1]


def test_rows_hold_several_documents(inputs: TaskInputs) -> None:
    batches = list_batches(inputs.train)
    assert max(count_documents(batch) for batch in batches) > 1
    assert sum(batch.num_rows for batch in batches) < inputs.train.num_examples
