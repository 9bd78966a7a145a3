"""Masked diffusion: its masks, its loss beside the published formula, and its exactness over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from maskwright.batch import IGNORED_LABEL, PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.masking.shares import DiffusionBatch, draw_shares
from maskwright.models.any_encoder import encode
from maskwright.models.bert import BERT
from maskwright.models.compilation import FunctionCompiler
from maskwright.objectives.masked_lm import DiffusionLanguageModel, MaskedLanguageModel
from maskwright.randomness import UINT32_RANGE
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms, sampling

VOCAB = 40
HEAD: dict[str, Any] = {"mask_token_id": 4, "special_token_ids": range(5), "mlm_head_dropout": 0.0}
LENGTH = 14
NUM_TERMS = count_terms(num_layers=1, width=16, length=LENGTH)


def build(kind: type = DiffusionLanguageModel, **settings: Any) -> Any:
    torch.manual_seed(0)
    encoder = BERT.from_variant(
        "tiny",
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
    )
    return kind(encoder, VOCAB, **HEAD, **settings)


def make_batch(num_rows: int = 40, first: int = 0) -> PackedBatch:
    """Texts of 3 to 12 ordinary tokens between [CLS] and [SEP], with padding behind them."""
    generator = torch.Generator().manual_seed(first)
    lengths = torch.randint(3, LENGTH - 1, (num_rows,), generator=generator)[:, None]
    places = torch.arange(LENGTH)[None]
    ids = torch.randint(5, VOCAB, (num_rows, LENGTH), generator=generator)
    ids = torch.where(places == 0, 2, torch.where(places <= lengths, ids, torch.where(places == lengths + 1, 3, 0)))
    return from_padded(ids, (places <= lengths + 1).long(), sample_ids=torch.arange(first, first + num_rows))


class TestMasks:
    def test_a_token_is_masked_with_the_probability_that_its_weight_says(self) -> None:
        batch = from_padded(torch.full((64, 400), 7), sample_ids=torch.arange(64))
        asked = build().corrupt(batch, 3, 1)
        shares = draw_shares(batch.sample_ids, 3, 1, 1e-3)[:, 0].double() / UINT32_RANGE
        found = asked.selected.double().mean(1)
        for share, own in zip(shares.tolist(), found.tolist(), strict=True):
            assert own == pytest.approx(share, abs=sampling(share, 400))
        weights = asked.weights.double()
        expected = torch.where(asked.selected, 1 / shares[:, None], 0.0)
        torch.testing.assert_close(weights, expected, rtol=4 * torch.finfo(torch.float32).eps, atol=0)

    def test_shares_are_even_over_samples_and_over_the_epochs_of_a_sample(self) -> None:
        """Any 64 successive ones leave no gap as large as independent draws would."""
        over_samples = draw_shares(torch.arange(1_000, 1_064), 0, 5, 1e-3)
        over_epochs = torch.stack([draw_shares(torch.tensor(9), 0, epoch, 1e-3) for epoch in range(64)])
        for shares in (over_samples, over_epochs):
            ordered = shares.double().sort().values / UINT32_RANGE
            assert float(ordered.diff().max()) < 3 / 64
            assert float(ordered[0]) < 3 / 64
            assert float(ordered[-1]) > 1 - 3 / 64

    def test_one_sample_has_any_share_over_the_seeds(self) -> None:
        shares = torch.stack([draw_shares(torch.tensor(5), seed, 2, 0.2) for seed in range(2_000)]).double()
        shares /= UINT32_RANGE
        assert float(shares.min()) >= 0.2
        assert float(shares.max()) < 1.0
        for bound in (0.4, 0.6, 0.8):
            below = (bound - 0.2) / 0.8
            assert float((shares < bound).double().mean()) == pytest.approx(below, abs=sampling(below, 2_000))

    def test_special_tokens_and_padding_stay_and_others_become_the_mask_token_alone(self) -> None:
        batch = make_batch(200)
        asked = build().corrupt(batch, 0, 0)
        is_ordinary = (batch.input_ids >= 5) & ~batch.is_padding
        assert not (asked.selected & ~is_ordinary).any()
        assert (asked.batch.input_ids[asked.selected] == HEAD["mask_token_id"]).all()
        assert torch.equal(asked.batch.input_ids[~asked.selected], batch.input_ids[~asked.selected])
        assert torch.equal(asked.labels[asked.selected], batch.input_ids[asked.selected])
        assert int(asked.counts) == int(is_ordinary.sum())
        shares = asked.selected.sum(1) / is_ordinary.sum(1)
        assert float(shares.min()) < 0.1
        assert float(shares.max()) == 1.0, "a sample may be masked throughout, and there are slots for it"
        assert int(asked.num_overflowing()) == 0

    def test_masks_do_not_depend_on_the_batch_the_order_or_the_rows(self) -> None:
        batch = make_batch(12)
        whole = build().corrupt(batch, 7, 3)
        order = torch.randperm(12)
        parts = [
            build().corrupt(batch.map_fields(lambda values, row=row: values[row : row + 1]), 7, 3) for row in order
        ]
        for part, row in zip(parts, order, strict=True):
            assert torch.equal(part.labels[0], whole.labels[row])
            assert torch.equal(part.weights[0], whole.weights[row])
        assert not torch.equal(build().corrupt(batch, 7, 4).labels, whole.labels)
        assert not torch.equal(build().corrupt(batch, 8, 3).labels, whole.labels)

    def test_evaluations_ask_the_same_always_and_the_shared_masks_stay_those_of_all_models(self) -> None:
        batch, model = make_batch(), build()
        first, second = (model.ask_for_evaluation(batch, 15, ratio) for ratio in (0.15, 1.0))
        assert torch.equal(first.labels, second.labels)
        plain = build(MaskedLanguageModel).corrupt_for_evaluation(batch, 15, 0.15)
        assert torch.equal(model.corrupt_for_evaluation(batch, 15, 0.15).labels, plain.labels)


def compute_published(model: Any, asked: DiffusionBatch, seed: int, epoch: int) -> Tensor:
    """Equation 3 of Nie et al. 2025, text by text: -1/t times the log-probabilities of the masked tokens, in float64.

    Divided by the number of ordinary tokens.
    """
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row in range(asked.labels.shape[0]):
        real = ~asked.batch.is_padding[row]
        ids, labels = asked.batch.input_ids[row][real], asked.labels[row][real]
        share = float(draw_shares(asked.batch.sample_ids[row, :1], seed, epoch, model.min_share)) / UINT32_RANGE
        log_probabilities = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for place in range(1, len(ids) - 1):
            count += 1
            if int(ids[place]) == HEAD["mask_token_id"]:
                total = total - log_probabilities[place, labels[place]] / share
    return total / count


class Plain(FunctionCompiler):
    def run(self, function: Callable[..., Any], *inputs: Any, fixed: tuple[Any, ...] = ()) -> Any:
        return function(*inputs, *fixed)


@pytest.mark.parametrize(("way", "capacity"), [("whole", None), ("slots", 40 * LENGTH), ("parts", 40 * LENGTH)])
def test_loss_and_gradients_are_those_of_the_published_formula(way: str, capacity: int | None) -> None:
    """As on a CPU, as with the static slots of a GPU, and with a GPU's loss in parts."""
    model, batch = build(), make_batch()
    asked = model.corrupt(batch, 3, 1)
    reference = build().double()
    expected = compute_published(reference.eval(), asked, 3, 1)
    expected.backward()
    model.train()
    if way == "parts":
        model._head_compiler = Plain()
    hidden = encode(model.encoder, asked.batch)
    sums = model.loss_sums(asked) if way == "whole" else model._score(hidden, asked.labels, capacity, asked.weights)
    loss = sums.loss_sum / asked.counts[0]
    loss.backward()
    magnitude = float(asked.weights.max())  # a gradient is a sum of terms as large as that
    assert_rounded(loss, expected, NUM_TERMS)
    found = {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
    wanted = {name: param.grad for name, param in reference.named_parameters() if param.grad is not None}
    assert len(found) > 10
    assert_rounded(found, {name: wanted[name] for name in found}, 2 * NUM_TERMS, magnitude)


def test_metrics_are_the_bound_its_perplexity_and_the_accuracy_of_masked_tokens() -> None:
    model, batch = build().eval(), make_batch()
    asked = model.ask_for_evaluation(batch, 15, 0.15)
    sums = model.loss_sums(asked)
    assert len(sums.figures) == model.num_figures
    metrics = model.compute_metrics([*sums.losses.tolist(), *sums.counts.tolist(), *sums.figures.tolist()])
    logits = model(asked.batch).logits
    is_right = logits.argmax(-1)[asked.selected] == asked.labels[asked.selected]
    assert metrics["mlm_accuracy"] == float(is_right.double().mean())
    assert metrics["loss"] == pytest.approx(float(sums.loss_sum.detach()) / int(asked.counts))
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    nothing = model.compute_metrics([0.0, 3.0, 0.0, 0.0])
    assert nothing["loss"] == 0.0, "no token was masked, which is a rare draw of the bound"
    assert math.isnan(nothing["mlm_accuracy"])


def train(training: dict[str, Any]) -> tuple[Trainer, dict[str, Tensor]]:
    trainer = Trainer(
        build(),
        OptimizerConfig(type="sgd", learning_rate=0.1, momentum=0.0, weight_decay=0.0),
        ScheduleConfig(type="constant", warmup_steps=0),
        TrainingConfig(epochs=2, batch_tokens=16 * LENGTH, precision="fp32", device="cpu", **training),
        seed=4,
    )
    trainer.fit([make_batch(16, first) for first in (0, 16, 32)])
    return trainer, trainer.model.state_dict()


def test_accumulation_has_the_loss_and_the_steps_of_the_whole_batch() -> None:
    """Whatever the tokens of its parts: the weighted sums are divided once, by the ordinary tokens of the batch."""
    whole, expected = train({})
    parts, found = train({"micro_batch_tokens": 3 * LENGTH})
    assert_rounded(parts.history.history["loss"], whole.history.history["loss"], 6 * NUM_TERMS, magnitude=100.0)
    assert_rounded(found, expected, 6 * NUM_TERMS)


def test_a_model_is_saved_with_its_objective_and_read_by_others_as_a_masked_one(tmp_path: Any) -> None:
    model = build(min_share=0.01).eval()
    model.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    assert type(loaded) is DiffusionLanguageModel
    assert loaded.min_share == 0.01
    batch = make_batch()
    assert torch.equal(
        loaded.loss_sums(loaded.corrupt(batch, 1, 0)).losses, model.loss_sums(model.corrupt(batch, 1, 0)).losses
    )
    from transformers import AutoModelForMaskedLM

    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[2, 9, 4, 11, 3]])
    assert_rounded(theirs(ids).logits, model(input_ids=ids).logits, NUM_TERMS)


def test_a_limit_outside_of_the_unit_interval_is_refused() -> None:
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(InputError, match="min_share is"):
            build(min_share=share)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_masks_and_has_the_same_loss() -> None:
    model, batch = build().eval(), make_batch()
    here = model.corrupt(batch, 5, 2)
    expected = model.loss_sums(here)
    model.to("cuda")
    there = model.corrupt(batch.to("cuda"), 5, 2)
    assert torch.equal(there.labels.cpu(), here.labels)
    assert torch.equal(there.weights.cpu(), here.weights)
    sums = model.loss_sums(there)
    assert_rounded(sums.loss_sum / there.counts[0], expected.loss_sum / here.counts[0], NUM_TERMS)
    assert int((there.labels != IGNORED_LABEL).sum()) == int(sums.figures[1])
