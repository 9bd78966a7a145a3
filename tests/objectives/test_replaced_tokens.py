"""Replaced-token detection: draws, gradients, metrics and mistakes. Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK]."""

from __future__ import annotations

import math

import pytest
import torch

import maskwright.objectives.replaced_tokens as replaced_tokens
from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.masking.tokens import TokenMasker
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.replaced_tokens import NUM_BINS, ReplacedTokenDetection
from tolerances import assert_rounded, count_terms, rounding

V = 60
SHAPE = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
NUM_TERMS = count_terms(num_layers=2, width=16, length=41)  # of the longest row, packed


def build_encoder(family=BERT, **overrides):
    return family.from_variant("tiny", **{**SHAPE, **overrides})


def build_model(family=BERT, encoder_overrides=(), **arguments):
    torch.manual_seed(0)
    settings = {"mask_token_id": 4, "special_token_ids": range(5), "mask_ratio": 0.4, **arguments}
    return ReplacedTokenDetection(build_encoder(family, **dict(encoder_overrides)), V, **settings).eval()


def make_padded(num_rows=3, length=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    input_ids = torch.randint(5, V, (num_rows, length), generator=generator)
    lengths = torch.randint(length // 2, length + 1, (num_rows, 1), generator=generator)
    attention_mask = (torch.arange(length) < lengths).long()
    return from_padded(input_ids * attention_mask, attention_mask, sample_ids=torch.arange(1, num_rows + 1))


def pack(padded: PackedBatch) -> PackedBatch:
    """All documents in one row, followed by padding."""
    is_real = ~padded.is_padding
    fields = (padded.input_ids, padded.sample_ids, padded.positions, padded.sample_ids)
    return PackedBatch(*(torch.nn.functional.pad(field[is_real], (0, 5))[None] for field in fields))


def test_draws_do_not_depend_on_the_layout_of_the_batch():
    model, padded = build_model(), make_padded()
    ids, is_replaced = model.propose(padded)
    assert is_replaced.any()
    is_real = ~padded.is_padding
    packed_ids, _ = model.propose(pack(padded))
    assert torch.equal(packed_ids[0, : int(is_real.sum())], ids[is_real])
    assert torch.equal(model.propose(padded.rows(1, 2))[0], ids[1:2])


def test_the_draws_change_with_seed_and_epoch():
    model, batch = build_model(), make_padded()
    draws = {tuple(model.corrupt(batch, seed, epoch).draws[0].tolist()) for seed in (0, 1, 2) for epoch in (0, 1, 2)}
    assert len(draws) == 9
    assert not torch.equal(model.propose(batch, 0)[0], model.propose(batch, 1)[0])


def test_a_low_temperature_draws_the_likeliest_token():
    model = build_model(temperature=1e-4)
    batch = make_padded()
    ids, _ = model.propose(batch)
    corrupted = model.corrupt(batch, model.seed, 0)
    embedded = model.encoder.embed(corrupted.batch.input_ids, batch.positions, None)
    hidden = model.generator(embedded, corrupted.batch)
    logits = model.generator.predict(hidden, model.encoder.get_input_embeddings().weight)
    assert torch.equal(ids[corrupted.selected], logits.argmax(-1)[corrupted.selected])
    assert torch.equal(ids[~corrupted.selected], batch.input_ids[~corrupted.selected])


def test_a_token_drawn_as_it_was_counts_as_original():
    model = build_model()
    model.generator.output_bias.data[7] = 100.0  # always drawn
    batch = from_padded(torch.tensor([[7, 8] * 10]))
    corrupted = model.corrupt(batch, 0, 0)
    is_drawn_as_it_was = corrupted.selected & (batch.input_ids == 7)
    assert is_drawn_as_it_was.any()
    num_replaced = int((corrupted.selected & (batch.input_ids == 8)).sum())
    model.detection_head.output.weight.data.zero_()
    model.detection_head.output.bias.data.fill_(2.0)  # all look replaced
    sums = model.loss_sums(corrupted)
    assert int(sums.figures[2 : 2 + NUM_BINS].sum()) == int(sums.figures[1]) == num_replaced
    expected = num_replaced * math.log1p(math.exp(-2.0)) + (20 - num_replaced) * math.log1p(math.exp(2.0))
    assert_rounded(sums.losses[1], expected, num_terms=20)


def test_static_slots_give_the_same_sums(monkeypatch):
    model = build_model()
    corrupted = model.corrupt(make_padded(), 0, 3)
    assert not corrupted.selected[0, 0], "the test needs an unmasked first token, which empty slots stand for"
    expected = model.loss_sums(corrupted)
    assert corrupted.num_slots > int(corrupted.counts[0]), "the test needs empty slots"
    gather = replaced_tokens.gather_labelled
    monkeypatch.setattr(
        replaced_tokens, "gather_labelled", lambda values, labels, _: gather(values, labels, corrupted.num_slots)
    )
    sums = model.loss_sums(corrupted)
    assert_rounded(sums.losses, expected.losses, NUM_TERMS)
    assert torch.equal(sums.counts, expected.counts)
    assert torch.equal(sums.figures, expected.figures)


def test_a_masked_token_without_a_slot_stays_as_it_was(monkeypatch):
    model = build_model()
    corrupted = model.corrupt(make_padded(), 0, 0)
    gather = replaced_tokens.gather_labelled
    monkeypatch.setattr(replaced_tokens, "gather_labelled", lambda values, labels, _: gather(values, labels, 2))
    sums = model.loss_sums(corrupted)
    assert sums.counts.tolist() == [2, int(corrupted.counts[1])]
    assert float(sums.figures[2 : 2 + NUM_BINS].sum()) <= 2


@pytest.mark.parametrize("family", [BERT, ModernBERT])
def test_gradients_of_each_loss_stay_on_its_side_but_for_the_embeddings(family):
    model = build_model(family)
    corrupted = model.corrupt(make_padded(), 0, 0)
    reached = []
    for part in (0, 1):
        model.zero_grad()
        model.loss_sums(corrupted).losses[part].backward()
        reached.append({name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()})
    generator, discriminator = reached
    assert not any(name.startswith("generator.") for name in discriminator)
    assert not any(name.startswith(("encoder.layers.", "detection_head.")) for name in generator)
    word = "encoder.embeddings.word.weight" if family is BERT else "encoder.word.weight"
    assert word in generator & discriminator
    assert generator | discriminator == {name for name, _ in model.named_parameters()}, "no weight is dead"


def test_nothing_leaks_between_documents():
    model = build_model()
    packed = pack(make_padded())
    other = packed.document_ids == 2
    changed = packed.with_input_ids(torch.where(other, (packed.input_ids - 4) % 55 + 5, packed.input_ids))
    ids, _ = model.propose(packed)
    changed_ids, _ = model.propose(changed)
    kept = ~other & ~packed.is_padding
    assert torch.equal(ids[kept], changed_ids[kept])
    logits = model(packed.with_input_ids(ids)).logits
    changed_logits = model(packed.with_input_ids(changed_ids)).logits
    assert_rounded(logits[kept], changed_logits[kept], NUM_TERMS)
    assert (logits[other] - changed_logits[other]).abs().max() > 100 * rounding(NUM_TERMS)


def test_segments_reach_generator_and_discriminator():
    model = build_model()
    batch = make_padded()
    segmented = from_padded(batch.input_ids, batch.document_ids, torch.ones_like(batch.input_ids), torch.arange(1, 4))
    plain, other = (model.loss_sums(model.corrupt(one, 0, 0)).losses for one in (batch, segmented))
    assert (plain != other).all()


def test_padding_and_unmasked_batches_count_for_nothing():
    model = build_model()
    specials_alone = from_padded(torch.tensor([[2, 3, 0, 0]]), torch.tensor([[1, 1, 0, 0]]))
    sums = model.loss_sums(model.corrupt(specials_alone, 0, 0))
    assert sums.counts.tolist() == [0, 2]
    assert sums.losses[0].item() == 0.0
    assert float(sums.figures[2:].sum()) == 2
    metrics = model.compute_metrics(torch.cat([sums.losses, sums.counts, sums.figures]).tolist())
    assert math.isnan(metrics["loss"])
    assert math.isnan(metrics["replaced_auc"])


def test_metrics_are_means_of_the_sums():
    model = build_model(discriminator_weight=10.0)
    positives, negatives = [0.0] * NUM_BINS, [0.0] * NUM_BINS
    positives[90], negatives[20], negatives[90] = 2.0, 3.0, 1.0
    metrics = model.compute_metrics([8.0, 12.0, 4.0, 6.0, 1.0, 3.0, *positives, *negatives])
    assert list(metrics) == [
        "loss",
        "generator_loss",
        "mlm_accuracy",
        "discriminator_loss",
        "replaced_accuracy",
        "replaced_auc",
    ]
    assert list(metrics.values()) == [2.0 + 10.0 * 2.0, 2.0, 0.25, 2.0, 0.5, (3 + 0.5) / 4]
    assert model.num_sums == 6 + 2 * NUM_BINS


@pytest.mark.parametrize("family", [BERT, ModernBERT])
@pytest.mark.parametrize(
    ("size", "expected"), [(0.25, (4, 1, 8)), (0.5, (8, 2, 16)), (0.01, (4, 1, 8)), (1, (16, 4, 32))]
)
def test_generator_size_is_a_share_that_keeps_the_head_size(family, size, expected):
    config = build_model(family, generator_size=size).generator.encoder_layers.config
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == expected
    assert config.num_hidden_layers == 2


def test_generator_layers_are_as_many_as_asked_for():
    assert len(build_model(generator_layers=1).generator.encoder_layers.layers) == 1


def test_the_generator_recomputes_activations_as_the_encoder_does():
    model = build_model()
    corrupted = model.corrupt(make_padded(), 0, 0)
    expected = model.loss_sums(corrupted).losses
    model.encoder.recomputes_activations = True
    assert_rounded(model.loss_sums(corrupted).losses, expected, NUM_TERMS)
    assert model.generator.encoder_layers.recomputes_activations


def test_evaluation_masks_single_tokens_whatever_the_strategy():
    padded = make_padded()
    starts = torch.arange(padded.input_ids.shape[1]).expand_as(padded.input_ids) % 3 == 0
    batch = from_padded(padded.input_ids, padded.document_ids, None, torch.arange(1, 4), starts)
    model, plain = build_model(strategy="whole_word"), build_model()
    assert isinstance(model.token_masker, TokenMasker)
    asked, expected = model.corrupt_for_evaluation(batch, 5, 0.3), plain.corrupt_for_evaluation(batch, 5, 0.3)
    assert torch.equal(asked.labels, expected.labels)
    assert not torch.equal(model.corrupt(batch, 5, 0, 0.3).labels, expected.labels)
    assert torch.equal(asked.draws, expected.draws)
    assert not torch.equal(asked.draws, model.corrupt_for_evaluation(batch, 6, 0.3).draws)


def test_a_vocabulary_smaller_than_the_table_predicts_its_own_tokens_alone():
    torch.manual_seed(0)
    model = ReplacedTokenDetection(build_encoder(), 50, mask_token_id=4, special_token_ids=range(5), mask_ratio=1.0)
    batch = from_padded(torch.randint(5, 50, (8, 30)))
    ids, is_replaced = model.propose(batch)
    assert is_replaced.float().mean() > 0.8
    assert int(ids.max()) < 50


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"generator_size": 0.0}, r"generator_size is 0.0; it must lie in \(0, 1\]"),
        ({"generator_size": 1.5}, r"generator_size is 1.5; it must lie in \(0, 1\]"),
        ({"generator_layers": 0}, "generator_layers is 0; it must be an integer of at least 1"),
        ({"discriminator_weight": -1.0}, r"discriminator_weight is -1.0; it must be a positive number"),
        ({"temperature": 0.0}, r"temperature is 0.0; it must be a positive number"),
        ({"mask_ratio": 0.0}, r"mask_ratio is 0.0; it must lie in \(0, 1\]"),
        ({"mask_token_id": V}, r"mask_token_id is 60, outside the vocabulary of 60 \(0 to 59\)"),
        ({"special_token_ids": [99]}, "special token id 99 is outside the vocabulary of 60"),
        ({"random_token_ratio": 0.9, "unchanged_ratio": 0.2}, r"is 1.1; together they can be at most 1"),
        ({"unchanged_ratio": -0.1}, r"unchanged_ratio is -0.1; it must lie in \[0, 1\]"),
        ({"selection": "some"}, "selection is 'some'; known are exact, bernoulli"),
        ({"strategy": "word"}, "no masking strategy 'word'"),
        ({"mlm_head_dropout": 1.0}, r"mlm_head_dropout is 1.0; it must lie in \[0, 1\)"),
        ({"layer_norm_eps": 0.0}, r"layer_norm_eps is 0.0; it must be a positive number"),
        ({"encoder_overrides": {"vocab_size": 50}}, "the encoder embeds 50 tokens, vocab_size is 60"),
    ],
)
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        build_model(**arguments)


def test_a_foreign_encoder_is_refused():
    with pytest.raises(InputError, match=r"the encoder is a Linear; .* needs a BERT or ModernBERT of maskwright"):
        ReplacedTokenDetection(torch.nn.Linear(4, 4), V, mask_token_id=4)


def test_a_batch_that_another_objective_corrupted_is_refused():
    model = build_model()
    with pytest.raises(InputError, match=r"a CorruptedBatch without numbers .* this model's own corrupt\(\)"):
        model.loss_sums(model.masker.corrupt(make_padded(), 0.3, 0, 0))
