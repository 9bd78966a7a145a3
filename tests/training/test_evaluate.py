from __future__ import annotations

import math

import pytest
import torch

from maskwright.batch import as_packed
from maskwright.errors import InputError, InputWarning, RunError
from maskwright.sections.training import TrainingConfig
from maskwright.training.held_out import Evaluation, evaluate, evaluate_unigram
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer
from tolerances import count_terms, rounding

NUM_TERMS = count_terms(num_layers=1, width=16, length=16)


def test_figures_do_not_depend_on_batch_size_or_row_order(build_model, build_loader):
    model = build_model()
    expected = evaluate(model, build_loader(shuffle=False).epoch(0))
    assert expected.num_masked > 30
    for loader in (build_loader(rows_per_batch=1), build_loader(rows_per_batch=100), build_loader(window=5)):
        for epoch in (0, 3):
            result = evaluate(model, loader.epoch(epoch))
            assert result.loss == pytest.approx(expected.loss, rel=rounding(NUM_TERMS))
            assert result.accuracy == expected.accuracy
            assert result.num_masked == expected.num_masked


def limit_memory(model, max_rows, error):
    """A model that runs out of memory on more rows; the numbers of rows that were tried."""
    loss_sums, attempts = model.loss_sums, []

    def limited(corrupted):
        attempts.append(len(corrupted.labels))
        if len(corrupted.labels) > max_rows:
            raise error
        return loss_sums(corrupted)

    model.loss_sums = limited
    return attempts


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines"),
        RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_out_of_memory_an_evaluation_goes_on_in_smaller_parts(build_model, build_loader, error):
    expected = evaluate(build_model(), build_loader().epoch(0))
    model = build_model()
    attempts = limit_memory(model, 1, error)
    with pytest.warns(InputWarning, match="out of memory with .* in an evaluation") as caught:
        found = evaluate(model, build_loader().epoch(0))
    assert [str(warning.message) for warning in caught] == [
        "out of memory with 64 tokens at a time in an evaluation; going on with 32, the figures stay the same",
        "out of memory with 32 tokens at a time in an evaluation; going on with 16, the figures stay the same",
    ]
    assert [rows for rows in attempts if rows > 1] == [4, 2], "what did not fit once is not tried again"
    assert found.loss == pytest.approx(expected.loss, rel=rounding(NUM_TERMS))
    assert (found.accuracy, found.num_masked) == (expected.accuracy, expected.num_masked)


def test_a_row_that_no_evaluation_has_memory_for_is_said(build_model, build_loader):
    model = build_model()
    limit_memory(model, 0, MemoryError())
    with pytest.raises(RunError, match=r"single row of 16 tokens in an evaluation \(MemoryError\); use a smaller"):
        evaluate(model, build_loader(rows_per_batch=1).epoch(0))


def test_a_trainer_remembers_what_its_evaluations_have_memory_for(build_model, build_loader):
    model, warnings = build_model(), []

    class Recorder(Callback):
        def on_warning(self, message):
            warnings.append(message)

    trainer = Trainer(model, training=TrainingConfig(device="cpu", precision="fp32"))
    loss_sums = model.loss_sums

    def limited(corrupted):
        if len(corrupted.labels) > 2 and not torch.is_grad_enabled():
            raise MemoryError
        return loss_sums(corrupted)

    model.loss_sums = limited
    loader = build_loader(num_documents=12)
    trainer.fit(loader, loader, epochs=2, callbacks=[Recorder()], verbose=False)
    trainer.evaluate(loader)
    assert len(warnings) == 1
    assert "in an evaluation; going on with 32" in warnings[0]


def test_padded_batches_do_not_depend_on_their_order_either(build_model, padded_batches):
    model = build_model()
    rows = torch.cat([batch["input_ids"] for batch in padded_batches]).flip(0)
    whole = {"input_ids": rows, "attention_mask": (rows != 0).long()}
    expected = evaluate(model, map(as_packed, padded_batches), mask_ratio=0.4)
    result = evaluate(model, [as_packed(whole)], mask_ratio=0.4)
    assert result.loss == pytest.approx(expected.loss, rel=rounding(NUM_TERMS))
    assert result.num_masked == expected.num_masked


def test_dropout_is_off_and_every_mode_comes_back(build_model, build_loader):
    model = build_model(dropout=0.5)
    expected = evaluate(model.eval(), build_loader().epoch(0))
    assert not model.training
    model.train()
    model.encoder.embeddings.eval()  # a part that is kept out of training
    assert evaluate(model, build_loader().epoch(0)) == expected
    assert model.training
    assert model.encoder.layers.training
    assert not model.encoder.embeddings.training


def test_mode_comes_back_after_an_error(build_model):
    def broken():
        yield as_packed(torch.tensor([[2, 5, 6, 3]]))
        raise OSError("disk")

    model = build_model().train()
    with pytest.raises(OSError, match="disk"):
        evaluate(model, broken())
    assert model.training


@torch.no_grad()
def test_loss_is_the_mean_cross_entropy_of_the_masked_tokens(build_model, build_loader):
    model = build_model().eval()
    batch = next(build_loader(rows_per_batch=50).epoch(0))
    corrupted = model.corrupt(batch, seed=4, epoch=0, ratio=0.3)
    logits = model(corrupted.batch).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, corrupted.labels.flatten())
    result = evaluate(model, [batch], mask_ratio=0.3, seed=4)
    assert result.loss == pytest.approx(float(expected), rel=rounding(NUM_TERMS))
    hits = (logits.argmax(-1) == corrupted.labels.flatten()).sum()
    assert result.accuracy == pytest.approx(float(hits) / result.num_masked)
    assert result.num_masked == int(corrupted.selected.sum())


def test_perplexity_is_the_exponential_of_the_loss():
    assert Evaluation({"loss": 2.5}, 10).perplexity == pytest.approx(math.exp(2.5))
    assert math.isfinite(Evaluation({"loss": 1e6}, 10).perplexity)


def test_no_batch_is_refused_and_nothing_masked_is_no_perfect_score(build_model):
    with pytest.raises(InputError, match="no batch"):
        evaluate(build_model(), [])
    result = evaluate(build_model(), [as_packed(torch.tensor([[2, 3]]))])
    assert math.isnan(result.loss)
    assert math.isnan(result.perplexity)
    assert result.num_masked == 0


def test_unigram_loss_equals_a_direct_count(build_model, build_loader):
    model, held_out = build_model(), build_loader(20, seed=3)
    counts = [0] * 60
    for batch in build_loader().epoch(0):
        for token in batch.input_ids.flatten().tolist():
            counts[token] += token > 4
    total = sum(counts) + 60
    losses = []
    for batch in held_out.epoch(0):
        labels = model.corrupt(batch, seed=15, epoch=0, ratio=0.15).labels.flatten().tolist()
        losses += [-math.log((counts[label] + 1) / total) for label in labels if label != -100]
    result = evaluate_unigram(model, held_out.epoch(0), torch.tensor(counts))
    assert result == pytest.approx(sum(losses) / len(losses), rel=rounding(len(losses), dtype=torch.float64))
    assert evaluate(model, held_out.epoch(0)).num_masked == len(losses)
