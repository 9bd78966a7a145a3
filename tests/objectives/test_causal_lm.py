from __future__ import annotations

import math

import pytest
import torch
from transformers import BertConfig as TheirConfig
from transformers import BertLMHeadModel, BertModel

from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import CausalLanguageModel, HybridLanguageModel, MaskedLanguageModel
from tolerances import assert_rounded, count_terms, rounding, sampling

VOCAB = 120
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
}
HEAD = {"mask_token_id": 4, "special_token_ids": range(5)}
NUM_TERMS = count_terms(num_layers=2, width=32, length=28)  # of the longest row, packed


def build_encoder(family=BERT, **overrides):
    torch.manual_seed(0)
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob") if family is BERT else ("mlp_dropout",)
    return family.from_variant("tiny", **SHAPE, **dict.fromkeys(rates, 0.0), **overrides)


def make_rows(lengths=(9, 14, 5), width=14):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, VOCAB, (len(lengths), width), generator=generator)
    real = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return torch.where(real, ids, 0), real.long()


def pack(ids, attention_mask):
    """All rows behind one another in one row."""
    lengths = attention_mask.sum(1).tolist()
    places = [torch.arange(length) for length in lengths]
    return PackedBatch(
        torch.cat([row[:length] for row, length in zip(ids, lengths, strict=True)])[None],
        torch.cat([torch.full_like(place, number + 1) for number, place in enumerate(places)])[None],
        torch.cat(places)[None],
        torch.cat([torch.full_like(place, number) for number, place in enumerate(places)])[None],
    )


@pytest.fixture
def theirs():
    torch.manual_seed(0)
    config = TheirConfig(
        **SHAPE, is_decoder=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0
    )
    return BertLMHeadModel(config).eval()


@pytest.fixture
def ours(theirs, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    return CausalLanguageModel.from_pretrained(tmp_path / "theirs")


def test_logits_loss_and_gradients_are_those_of_transformers(theirs, ours):
    ids, attention_mask = make_rows()
    labels = ids.masked_fill(attention_mask == 0, -100)
    expected = theirs(input_ids=ids, attention_mask=attention_mask, labels=labels)
    found = ours(input_ids=ids, attention_mask=attention_mask, labels=labels)
    real = attention_mask.bool()
    assert_rounded(found.logits[real], expected.logits[real], NUM_TERMS)
    assert_rounded(found.loss, expected.loss, NUM_TERMS)
    expected.loss.backward()
    found.loss.backward()
    found_grads = {"position": ours.encoder.embeddings.position.weight.grad, "word": ours.mlm_output.weight.grad}
    their_tables = theirs.bert.embeddings
    expected_grads = {
        "position": their_tables.position_embeddings.weight.grad,
        "word": their_tables.word_embeddings.weight.grad,
    }
    assert_rounded(found_grads, expected_grads, 2 * NUM_TERMS)


@pytest.mark.parametrize("family", [BERT, ModernBERT])
def test_packed_rows_give_the_loss_of_padded_ones(family):
    model = CausalLanguageModel(build_encoder(family), VOCAB, **HEAD, mlm_head_dropout=0.0).eval()
    ids, attention_mask = make_rows()
    padded = model.loss_sums(model.corrupt(from_padded(ids, attention_mask), 0, 0))
    packed = model.loss_sums(model.corrupt(pack(ids, attention_mask), 0, 0))
    assert_rounded(packed.losses, padded.losses, NUM_TERMS)
    assert int(packed.num_labelled) == int(padded.num_labelled) == int(attention_mask.sum()) - len(ids)


@pytest.mark.parametrize("family", [BERT, ModernBERT])
def test_no_token_sees_what_comes_after_it(family):
    model = CausalLanguageModel(build_encoder(family), VOCAB, **HEAD).eval()
    ids, _ = make_rows((14,))
    changed = ids.clone()
    changed[0, 7:] = 6
    first, second = model(input_ids=ids).logits, model(input_ids=changed).logits
    assert_rounded(first[:, :7], second[:, :7], NUM_TERMS)
    assert (first[:, 7:] - second[:, 7:]).abs().max() > 100 * rounding(NUM_TERMS)


def test_metrics_have_perplexity():
    model = CausalLanguageModel(build_encoder(), VOCAB, **HEAD)
    metrics = model.compute_metrics([20.0, 10.0, 3.0])
    assert list(metrics) == ["loss", "clm_accuracy", "perplexity"]
    assert metrics["loss"] == 2.0
    assert metrics["perplexity"] == pytest.approx(math.exp(2.0))


def test_an_encoder_that_sees_both_sides_is_refused():
    foreign = BertModel(TheirConfig(**SHAPE))
    for build in (CausalLanguageModel, HybridLanguageModel):
        with pytest.raises(InputError, match="BertModel always sees both sides"):
            build(foreign, VOCAB, **HEAD)


class TestHybrid:
    def test_samples_are_causal_or_masked_as_a_whole_whatever_their_batch(self):
        model = HybridLanguageModel(build_encoder(), VOCAB, **HEAD, causal_share=0.5)
        ids, attention_mask = make_rows((9, 14, 5, 8, 12, 7))
        padded = from_padded(ids, attention_mask, sample_ids=torch.arange(6))
        together, apart = model.corrupt(pack(ids, attention_mask), 3, 1), model.corrupt(padded, 3, 1)
        real = attention_mask.bool()
        assert torch.equal(apart.is_causal[real], together.is_causal[0])
        assert torch.equal(apart.labels[real], together.labels[0])
        assert torch.equal(apart.batch.input_ids[real], together.batch.input_ids[0])
        kinds = apart.is_causal.float().mean(1)
        assert set(kinds.tolist()) == {0.0, 1.0}

    def test_the_share_of_causal_samples_is_the_one_asked_for(self):
        model = HybridLanguageModel(build_encoder(), VOCAB, **HEAD, causal_share=lambda progress: progress)
        batch = from_padded(torch.full((4000, 3), 7), sample_ids=torch.arange(4000))
        for progress in (0.0, 0.2, 0.7):
            share = model.corrupt(batch, 0, 0, progress=progress).is_causal.float().mean()
            assert float(share) == pytest.approx(progress, abs=sampling(progress, 4000))
        none = HybridLanguageModel(build_encoder(), VOCAB, **HEAD, causal_share=0.0)
        assert none.corrupt(batch, 0, 0).is_causal is None

    def test_without_causal_samples_it_is_a_masked_language_model(self):
        ids, attention_mask = make_rows((9, 14, 5, 8))
        batch = pack(ids, attention_mask)
        masked = MaskedLanguageModel(build_encoder(), VOCAB, **HEAD).eval()
        phased = HybridLanguageModel(
            build_encoder(), VOCAB, **HEAD, causal_share=lambda progress: 0.0, shifts_masks=False
        )
        phased.eval().load_state_dict(masked.state_dict())
        ours, theirs = phased.corrupt(batch, 3, 1, 0.4), masked.corrupt(batch, 3, 1, 0.4)
        assert torch.equal(ours.labels, theirs.labels)
        assert ours.num_slots == theirs.num_slots
        assert torch.equal(phased.loss_sums(ours).losses, masked.loss_sums(theirs).losses)

    def test_masked_tokens_are_answered_one_place_earlier(self):
        ids, attention_mask = make_rows((14, 14))
        batch = from_padded(ids, attention_mask)
        plain = MaskedLanguageModel(build_encoder(), VOCAB, **HEAD).corrupt_for_evaluation(batch, 1, 0.5)
        model = HybridLanguageModel(build_encoder(), VOCAB, **HEAD)
        shifted = model.corrupt_for_evaluation(batch, 1, 0.5)
        assert torch.equal(shifted.labels[:, :-1], plain.labels[:, 1:])
        assert torch.equal(shifted.batch.input_ids, plain.batch.input_ids)
        unshifted = HybridLanguageModel(build_encoder(), VOCAB, **HEAD, shifts_masks=False)
        assert torch.equal(unshifted.corrupt_for_evaluation(batch, 1, 0.5).labels, plain.labels)

    @pytest.mark.parametrize(("share", "ratio"), [(0.25, 0.3), (0.5, 0.15), (0.05, 0.3)])
    def test_slots_are_enough_for_every_draw_and_not_many_more(self, share, ratio):
        model = HybridLanguageModel(build_encoder(), VOCAB, **HEAD, causal_share=share)
        ids = torch.randint(5, VOCAB, (256, 64))
        batch = from_padded(ids, sample_ids=torch.arange(len(ids)))
        draws = [model.corrupt(batch, seed, 0, ratio) for seed in range(60)]
        assert sum(int(draw.num_overflowing()) for draw in draws) == 0
        mean_count = sum(int(draw.counts) for draw in draws) / len(draws)
        assert max(draw.num_slots for draw in draws) < 1.5 * mean_count

    def test_a_share_beyond_one_is_refused(self):
        with pytest.raises(InputError, match=r"causal_share is 1\.5"):
            HybridLanguageModel(build_encoder(), VOCAB, **HEAD, causal_share=1.5)
