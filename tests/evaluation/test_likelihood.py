from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from maskwright.errors import InputError, InputWarning, RunError
from maskwright.evaluation.answers import score_answers
from maskwright.evaluation.likelihood import score_texts
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import CausalLanguageModel, HybridLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=24)

TEXTS = ["the cat sees.", "birdcat", "a small dog follows the greenhouse road.", "the cat sees.", "one"]


def build(tokenizer: Tokenizer, kind: type = MaskedLanguageModel, encoder: type = BERT, **settings: Any) -> Any:
    torch.manual_seed(0)
    built = encoder.from_variant(
        next(iter(encoder.variants)),
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
        max_position_embeddings=24,
        pad_token_id=tokenizer.pad_token_id,
    )
    return kind(
        built,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
        **settings,
    ).train()


@torch.no_grad()
def score_one_by_one(model: Any, tokenizer: Tokenizer, text: str, word_l2r: bool = False) -> float:
    """The definition, with one unpadded input for each token."""
    encoding = tokenizer.backend.encode(text)
    ids, words = encoding.ids, encoding.word_ids
    total = 0.0
    for place in range(1, len(ids) - 1):
        masked = [
            tokenizer.mask_token_id
            if other == place or (word_l2r and other > place and words[other] == words[place])
            else token
            for other, token in enumerate(ids)
        ]
        logits = model.eval()(input_ids=torch.tensor([masked])).logits[0]
        answer = logits[place - 1 if model.predicts_next else place]
        total += float(answer.log_softmax(dim=-1)[ids[place]])
    model.train()
    return total


@pytest.mark.parametrize("encoder", [BERT, ModernBERT])
@pytest.mark.parametrize("word_l2r", [False, True])
def test_every_text_gets_its_score_by_definition_in_order(tokenizer: Tokenizer, encoder: type, word_l2r: bool) -> None:
    model = build(tokenizer, encoder=encoder)
    scores = score_texts(model, tokenizer, TEXTS, word_l2r=word_l2r)
    expected = [score_one_by_one(model, tokenizer, text, word_l2r) for text in TEXTS]
    assert_rounded(scores.log_likelihoods, expected, NUM_TERMS)
    assert scores.num_tokens.tolist() == [len(tokenizer.encode(text)) - 2 for text in TEXTS]
    assert scores.fits.all()
    assert model.training


def test_masking_the_rest_of_a_word_changes_only_texts_with_words_of_several_tokens(tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    assert len(tokenizer.encode("birdcat")) > 3
    plain, corrected = (score_texts(model, tokenizer, TEXTS, word_l2r=flag).log_likelihoods for flag in (False, True))
    assert plain[1] != pytest.approx(corrected[1])
    assert_rounded(plain[0], corrected[0], NUM_TERMS)


def test_a_model_that_answers_one_place_earlier_is_asked_there(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, HybridLanguageModel)
    assert model.predicts_next
    scores = score_texts(model, tokenizer, TEXTS)
    assert_rounded(scores.log_likelihoods, [score_one_by_one(model, tokenizer, text) for text in TEXTS], NUM_TERMS)


@pytest.mark.parametrize("kind", ["causal", "hybrid that ended as a causal model"])
def test_a_causal_model_gives_its_exact_log_likelihood(tokenizer: Tokenizer, kind: str) -> None:
    causal = build(tokenizer, CausalLanguageModel).eval()
    model = causal if kind == "causal" else build(tokenizer, HybridLanguageModel, evaluates_causally=True)
    expected = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text)])
        with torch.no_grad():
            answers = causal(input_ids=ids).logits[0].log_softmax(dim=-1)
        expected.append(sum(float(answers[place - 1, ids[0, place]]) for place in range(1, ids.shape[1] - 1)))
    assert_rounded(score_texts(model, tokenizer, TEXTS).log_likelihoods, expected, NUM_TERMS)


def test_a_causal_model_refuses_the_correction(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="left to right already"):
        score_texts(build(tokenizer, CausalLanguageModel), tokenizer, TEXTS, word_l2r=True)


def test_equal_texts_are_asked_once_so_that_they_tie_exactly(
    tokenizer: Tokenizer, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_copies = []

    def count(model: Any, pad_token_id: int, samples: Any, score: Any) -> Any:
        asked = list(samples)
        num_copies.append(sum(sample.num_documents for sample in asked))
        return score_answers(model, pad_token_id, asked, score)

    monkeypatch.setattr("maskwright.evaluation.likelihood.score_answers", count)
    scored = score_texts(build(tokenizer), tokenizer, [*sentences, *reversed(sentences)])
    scores = scored.log_likelihoods
    assert sum(num_copies) == scored.num_tokens.sum() / 2
    assert (scores[: len(sentences)] == scores[len(sentences) :][::-1]).all()
    assert len(np.unique(scores)) == len(sentences)


def test_texts_longer_than_the_model_are_not_scored(tokenizer: Tokenizer) -> None:
    long = "the cat " * 20
    scores = score_texts(build(tokenizer), tokenizer, ["the cat", long, "one"])
    alone = score_texts(build(tokenizer), tokenizer, ["the cat", "one"])
    assert scores.fits.tolist() == [True, False, True]
    assert_rounded(scores.log_likelihoods[[0, 2]], alone.log_likelihoods, NUM_TERMS)
    assert not score_texts(build(tokenizer), tokenizer, [long]).fits.any()


def test_the_longest_text_that_fits_is_scored(tokenizer: Tokenizer) -> None:
    text = " ".join(["the"] * 22)
    assert len(tokenizer.encode(text)) == 24
    assert score_texts(build(tokenizer), tokenizer, [text, f"{text} the"]).fits.tolist() == [True, False]


@pytest.mark.parametrize(("text", "complaint"), [("", "has no token"), ("the [MASK]", r"holds \[MASK\]")])
def test_a_text_with_nothing_to_score_is_named(tokenizer: Tokenizer, text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=rf"text 2, .*{complaint}"):
        score_texts(build(tokenizer), tokenizer, ["one", text])


def test_tokens_that_the_model_does_not_know_are_refused(tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    model.vocab_size = 6
    with pytest.raises(InputError, match="use the model's tokenizer"):
        score_texts(model, tokenizer, TEXTS)


def test_a_broken_model_is_no_figure(tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    torch.nn.init.constant_(model.mlm_output.bias, float("nan"))
    with pytest.raises(RunError, match="not finite"):
        score_texts(model, tokenizer, TEXTS)


def test_one_text_is_not_read_as_its_letters(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"texts is one text; give a list of texts"):
        score_texts(build(tokenizer), tokenizer, "the cat")


def test_batches_too_large_for_the_memory_are_halved(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(tokenizer)
    expected = score_texts(model, tokenizer, TEXTS).log_likelihoods
    forward = model.encoder.forward

    def limited(*arguments: Any, **named: Any) -> Any:
        if named["input_ids"].numel() > 120:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        return forward(*arguments, **named)

    monkeypatch.setattr(model.encoder, "forward", limited)
    monkeypatch.setattr("maskwright.evaluation.likelihood._SAMPLE_TOKENS", 60)
    with pytest.warns(InputWarning, match="out of memory with .* tokens at a time"):
        found = score_texts(model, tokenizer, TEXTS).log_likelihoods
    assert_rounded(found, expected, NUM_TERMS)
