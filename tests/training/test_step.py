from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kept_gradients import build_step, compute_gradients

from maskwright.batch import as_packed, concatenate
from maskwright.sections.training import OptimizerConfig
from maskwright.training.optim.optimizers import build_optimizers
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=1, width=16, length=16)


def test_micro_batches_give_the_gradients_of_the_whole_batch(build_model, build_loader):
    model = build_model().train()
    batch = next(build_loader(rows_per_batch=7).epoch(0))
    counts = [int(model.corrupt(batch.rows(row, row + 1), 7, 0, 0.3).selected.sum()) for row in range(7)]
    assert len(set(counts)) > 1, "the test needs unlike masked counts"
    whole, expected = compute_gradients(model, batch)
    for micro_batch_tokens in (16, 48):  # one row and three rows at a time, the last micro-batch a smaller one
        result, gradients = compute_gradients(model, batch, micro_batch_tokens=micro_batch_tokens)
        assert int(result.sums[1]) == int(whole.sums[1]) == sum(counts)
        for found, exact in zip(result.sums, whole.sums, strict=True):
            assert_rounded(found, exact, NUM_TERMS)
        assert_rounded(gradients, expected, 2 * NUM_TERMS)


def test_gradients_are_those_of_the_mean_loss(build_model, build_loader):
    model = build_model().train()
    batch = next(build_loader().epoch(0))
    _, gradients = compute_gradients(model, batch)
    corrupted = model.corrupt(batch, 7, 0, 0.3)
    logits = model(corrupted.batch).logits
    model.zero_grad()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), corrupted.labels.flatten()).backward()
    assert_rounded(gradients, {name: param.grad for name, param in model.named_parameters()}, 2 * NUM_TERMS)


def test_nothing_to_mask_gives_zero_gradients(build_model):
    model = build_model(dropout=0.1).train()
    result, gradients = compute_gradients(model, as_packed(torch.tensor([[2, 3, 0], [2, 3, 0]])))
    assert result.sums.tolist() == [0.0, 0.0, 0.0]
    assert float(result.grad_norm) == 0.0
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients.values())


def test_dropout_is_a_function_of_seed_and_step(build_model, build_loader):
    model = build_model(dropout=0.3).train()
    batch = next(build_loader().epoch(0))
    torch.manual_seed(1)
    _, first = compute_gradients(model, batch, step=5)
    torch.manual_seed(2)
    _, again = compute_gradients(model, batch, step=5)
    _, other = compute_gradients(model, batch, step=6)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["mlm_dense.weight"], other["mlm_dense.weight"])


def test_clipping_scales_all_gradients_to_the_norm(build_model, build_loader):
    model = build_model().train()
    batch = next(build_loader().epoch(0))
    free, gradients = compute_gradients(model, batch)
    num_elements = sum(gradient.numel() for gradient in gradients.values())
    norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients.values()))
    assert_rounded(free.grad_norm, norm, num_elements)
    limit = float(norm) / 4
    clipped, scaled = compute_gradients(model, batch, max_norm=limit)
    assert_rounded(clipped.grad_norm, norm, num_elements)
    assert_rounded(scaled, {name: gradient / 4 for name, gradient in gradients.items()}, num_elements)
    _, loose = compute_gradients(model, batch, max_norm=float(norm) * 2)
    assert_rounded(loose, gradients, num_elements)


@pytest.mark.parametrize("type", ["adamw", "muon"])
def test_a_step_changes_every_weight_that_took_part(build_model, build_loader, type):
    model = build_model().train()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    config = OptimizerConfig(type=type, learning_rate=1e-2)
    train_step = build_step(model, build_optimizers(model, config), 0, 1.0)
    train_step(next(build_loader().epoch(0)), step=0, epoch=0, mask_ratio=0.3)
    assert all(not torch.equal(before[name], param) for name, param in model.named_parameters())


def pad_rows(batch, num_rows):
    """The batch with rows of padding alone at its end, as a process gets them when rows are too few."""
    row = batch.rows(0, 1)
    empty = replace(row, **{name: torch.zeros_like(getattr(row, name)) for name in ("document_ids", "sample_ids")})
    return concatenate([batch, *[empty] * num_rows])


def test_parts_of_padding_alone_leave_the_gradients_as_they_are(build_model, build_loader):
    model = build_model().train()
    batch = next(build_loader(rows_per_batch=3).epoch(0))
    whole, expected = compute_gradients(model, batch)
    result, gradients = compute_gradients(model, pad_rows(batch, 3), micro_batch_tokens=16)
    assert int(result.sums[1]) == int(whole.sums[1])
    assert int(result.num_tokens) == int(whole.num_tokens)
    assert_rounded(gradients, expected, 2 * NUM_TERMS)


def test_parts_without_a_masked_token_count_for_nothing(build_model, build_loader):
    model = build_model().train()
    batch = next(build_loader(rows_per_batch=3).epoch(0))
    specials_alone = as_packed(torch.tensor([[2, 3] + [0] * 14] * 2))
    _, expected = compute_gradients(model, batch)
    both = concatenate([batch, replace(specials_alone, sample_ids=specials_alone.sample_ids.clone())])
    result, gradients = compute_gradients(model, both, micro_batch_tokens=16)
    assert torch.isfinite(result.grad_norm)
    assert_rounded(gradients, expected, 2 * NUM_TERMS)
