from __future__ import annotations

import math

import pytest
import torch

from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.evaluation.masked_questions import score_samples
from maskwright.objectives.causal_lm import CausalLanguageModel
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import evaluate
from tolerances import count_terms, rounding

NUM_TERMS = count_terms(num_layers=1, width=16, length=24)


@pytest.fixture
def loader(tokenizer: Tokenizer, sentences: list[str]) -> PackedLoader:
    return PackedLoader(
        TokenStore.from_documents(tokenizer.encode_batch(sentences), tokenizer.vocab_size),
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        row_length=24,
        rows_per_batch=4,
        shuffle=False,
    )


@pytest.mark.parametrize("kind", [MaskedLanguageModel, CausalLanguageModel])
def test_samples_add_up_to_the_evaluation(
    small_model: MaskedLanguageModel, tokenizer: Tokenizer, loader: PackedLoader, kind: type[MaskedLanguageModel]
) -> None:
    model = kind(
        small_model.encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )
    whole = evaluate(model, loader.epoch(0))
    scores = score_samples(model, loader.epoch(0))
    assert scores.num_questions.sum() == whole.num_masked
    assert scores.loss_sums.sum() / scores.num_questions.sum() == pytest.approx(whole.loss, rel=rounding(NUM_TERMS))
    assert scores.num_correct.sum() / scores.num_questions.sum() == pytest.approx(whole.accuracy)
    assert len(scores.loss_sums) == len(loader.samples)


def test_each_sample_has_its_own_sum(small_model: MaskedLanguageModel, loader: PackedLoader) -> None:
    scores = score_samples(small_model, loader.epoch(0))
    for sample in (0, 7):
        alone = evaluate(small_model, [loader.build_batch([[sample]])])
        assert scores.num_questions[sample] == alone.num_masked
        loss = scores.loss_sums[sample] / scores.num_questions[sample]
        assert loss == pytest.approx(alone.loss, rel=rounding(NUM_TERMS))
    assert not math.isclose(scores.loss_sums[0], scores.loss_sums[7])


def test_nothing_to_ask_is_refused(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="too short"):
        score_samples(small_model, [])


def test_the_model_is_left_as_it_was(small_model: MaskedLanguageModel, loader: PackedLoader) -> None:
    first = score_samples(small_model, loader.epoch(0))
    assert small_model.training
    assert torch.equal(
        torch.from_numpy(first.loss_sums), torch.from_numpy(score_samples(small_model, loader.epoch(0)).loss_sums)
    )
