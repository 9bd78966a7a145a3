"""The losses of similarity are those of plain padded encodings, whatever the packing, the parts and the processes."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from contrastive_worker import build_groups
from prestarted import Prestarted
from safetensors.torch import load_file
from similarity_lab import build_pairs, embed_padded, load, write_pairs
from task_lab import Lab
from torch import Tensor

from maskwright.runs.finetune.inputs import TaskInputs
from maskwright.tasks.loader import AskedBatch, TaskBatch, WholeBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.similarity.contrastive import Groups, compute_contrastive_losses
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=64)
MAGNITUDE = 1 / 0.05  # of cosines over the temperature


@pytest.fixture
def pairs_lab(lab: Lab) -> Lab:
    write_pairs(lab, build_pairs(24, seed=0), build_pairs(16, seed=1))
    return lab


def take_batch(inputs: TaskInputs, size: int) -> TaskBatch:
    return inputs.train.build_batch(np.arange(size))


def check_against(model: TaskModel, batch: TaskBatch, reference: TaskModel, expected: Tensor) -> None:
    """The mean loss, and every gradient."""
    sums = model.loss_sums(AskedBatch.of(batch))
    loss = sums.loss_sum / sums.num_labelled
    assert_rounded(loss, expected, NUM_TERMS, MAGNITUDE)
    loss.backward()
    expected.backward()
    found, exact = ({name: param.grad for name, param in one.named_parameters()} for one in (model, reference))
    assert_rounded(found, exact, 2 * NUM_TERMS, magnitude=1.0)


def build_two(inputs: TaskInputs) -> tuple[TaskModel, TaskModel]:
    model = inputs.build_model(seed=0).eval()
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_cosine_loss_of_packed_rows_is_that_of_padded_texts(pairs_lab: Lab, pooling: str) -> None:
    inputs = load(pairs_lab, loss="cosine", pooling=pooling)
    model, reference = build_two(inputs)
    batch, examples = take_batch(inputs, 9), inputs.train.features.examples[:9]
    assert batch.num_rows < 9
    first, second = (
        embed_padded(inputs, reference.encoder, [one.texts[side] for one in examples], pooling) for side in (0, 1)
    )
    labels = torch.tensor([one.label / 5.0 for one in examples])
    check_against(model, batch, reference, ((first * second).sum(-1) - labels).square().mean())


def refer_to_contrast(first: Tensor, second: Tensor, is_negative: Tensor, hard: Tensor | None = None) -> Tensor:
    """Symmetric InfoNCE, one pair after the other."""
    losses = []
    for number in range(len(first)):
        allowed = [other for other in range(len(first)) if other == number or is_negative[number, other]]
        place = allowed.index(number)
        there = [first[number] @ second[other] for other in allowed]
        if hard is not None:
            there += [first[number] @ one for one in hard]
        back = [second[number] @ first[other] for other in allowed]
        for cosines in (there, back):
            losses.append(F.cross_entropy(torch.stack(cosines)[None] / 0.05, torch.tensor([place])))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_contrastive_loss_of_packed_rows_is_that_of_padded_texts(lab: Lab, pooling: str) -> None:
    """Subjects and verbs repeat, but as pairs no text is the same as another's."""
    subjects, verbs = ("the cat", "a small dog", "my old teacher"), ("sees", "follows")
    records = [
        {"sentence1": f"{subject} {verb}", "sentence2": f"{subject} {verb} a long road"}
        for subject in subjects
        for verb in verbs
    ]
    write_pairs(lab, records, records)
    inputs = load(lab, pooling=pooling)
    model, reference = build_two(inputs)
    sides = [
        embed_padded(inputs, reference.encoder, [one.texts[side] for one in inputs.train.features.examples], pooling)
        for side in (0, 1)
    ]
    batch = take_batch(inputs, 6)
    assert batch.num_rows < 6
    check_against(model, batch, reference, refer_to_contrast(*sides, ~torch.eye(6, dtype=torch.bool)))


def test_equal_texts_are_no_negatives_and_hard_negatives_are(lab: Lab) -> None:
    records = [
        {"anchor": "the cat sees", "positive": "a long road", "negative": "the green house"},
        {"anchor": "The cat  sees", "positive": "one red bird", "negative": "the quiet river"},
        {"anchor": "every student", "positive": "a long road", "negative": "my old teacher"},
        {"anchor": "a small dog", "positive": "it rains", "negative": "in the morning"},
    ]
    write_pairs(lab, records, records)
    inputs = load(lab)
    model, reference = build_two(inputs)
    first, second, hard = (
        embed_padded(inputs, reference.encoder, [record[name] for record in records], "mean")
        for name in ("anchor", "positive", "negative")
    )
    is_negative = torch.tensor(
        # 0 and 1 have the same first text, 0 and 2 the same second one; 1 and 2 have nothing in common
        [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]],
        dtype=torch.bool,
    )
    check_against(model, take_batch(inputs, 4), reference, refer_to_contrast(first, second, is_negative, hard))


def test_pairs_that_do_not_belong_together_have_no_part_in_the_loss(lab: Lab) -> None:
    pairs = build_pairs(12, seed=3)
    write_pairs(lab, pairs, pairs)
    inputs = load(lab)
    belonging = [number for number, one in enumerate(pairs) if one["score"] >= 4]
    assert 0 < len(belonging) < 12
    assert len(inputs.train.features.examples) == len(belonging)
    model = inputs.build_model(seed=0).eval()
    every = model.loss_sums(AskedBatch.of(inputs.validation.build_batch(np.arange(12))))
    alone = model.loss_sums(AskedBatch.of(inputs.train.build_batch(np.arange(len(belonging)))))
    assert_rounded(every.losses, alone.losses, NUM_TERMS, MAGNITUDE)
    assert int(every.num_labelled) == int(alone.num_labelled) == 2 * len(belonging)


@pytest.fixture
def large(lab: Lab) -> TaskInputs:
    write_pairs(lab, build_pairs(120, seed=0), build_pairs(16, seed=1))
    return load(lab)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_a_batch_encoded_in_parts_has_the_loss_and_the_gradients_of_the_whole(large: TaskInputs, num_rows: int) -> None:
    model, reference = build_two(large)
    whole = take_batch(large, 40)
    assert whole.num_rows > num_rows
    (batch,) = whole.cut(num_rows)
    assert isinstance(batch, WholeBatch)
    assert max(part.num_rows for part in batch.list_parts()) == num_rows
    sums = reference.loss_sums(AskedBatch.of(whole))
    check_against(model, batch, reference, sums.loss_sum / sums.num_labelled)
    with torch.no_grad():
        assert_rounded(model.answer(batch)[1], model.answer(whole)[1], NUM_TERMS)


def test_dropout_is_the_same_when_a_part_is_encoded_again(large: TaskInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference = (model.train() for model in build_two(large))
    (batch,) = take_batch(large, 40).cut(2)
    for one in (model, reference):
        torch.manual_seed(3)
        one.loss_sums(AskedBatch.of(batch)).loss_sum.backward()
        monkeypatch.setattr("maskwright.tasks.model.checkpoint", lambda compute, part, **options: compute(part))
    found, exact = ({name: param.grad for name, param in one.named_parameters()} for one in (model, reference))
    assert_rounded(found, exact, 2 * NUM_TERMS, MAGNITUDE * 40)


def test_a_batch_is_whole_where_memory_is_enough_and_scores_may_be_cut(pairs_lab: Lab) -> None:
    whole = take_batch(load(pairs_lab), 8)
    assert whole.cut(whole.num_rows)[0] is whole
    inputs = load(pairs_lab, loss="cosine")
    model, batch = inputs.build_model(seed=0).eval(), take_batch(inputs, 12)
    total = model.loss_sums(AskedBatch.of(batch)).losses
    assert batch.num_rows > 1
    parts = [model.loss_sums(AskedBatch.of(part)).losses for part in batch.cut(1)]
    assert len(parts) == batch.num_rows
    assert_rounded(torch.stack(parts).sum(0), total, NUM_TERMS)


def test_processes_share_their_negatives_with_exact_gradients(prestarted: Prestarted, tmp_path: Path) -> None:
    groups = build_groups()
    vectors = groups.vectors.clone().requires_grad_()
    losses, hits = compute_contrastive_losses(Groups(vectors, groups.texts, groups.is_asked), 0.05)
    losses[groups.is_asked].sum().backward()
    ranks = prestarted.start_ranks("contrastive_worker:compute_share", {"folder": str(tmp_path)}, tmp_path / "said", 2)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.text() for rank in ranks]
    shares = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    num_terms = vectors.numel()
    assert_rounded(torch.cat([one["losses"] for one in shares]), losses, num_terms, MAGNITUDE)
    assert_rounded(torch.cat([one["gradient"] for one in shares]), vectors.grad, num_terms)
    assert torch.equal(torch.cat([one["hits"] for one in shares]), hits)
