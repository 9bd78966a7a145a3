"""What versions of a model are measured by is the same for all of them and the same as in an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.export.measuring import LATENCY_BATCHES, build_exam
from maskwright.export.onnx_graph import answer_with_torch
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import CausalLanguageModel, HybridLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import evaluate
from tolerances import count_terms, rounding

MAX_LENGTH = 40


def build(kind: type[MaskedLanguageModel], tokenizer: Tokenizer, **settings: Any) -> MaskedLanguageModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_range": 0.2}
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, max_position_embeddings=MAX_LENGTH, **shape)
    special = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    return kind(encoder, tokenizer.vocab_size, **special, **settings)


def test_held_out_loss_is_that_of_an_evaluation(tokenizer, sentences):
    model = build(MaskedLanguageModel, tokenizer).eval()
    rows = [torch.tensor([tokenizer.encode(text)]) for text in sentences]
    expected = evaluate(model, [from_padded(row) for row in rows])
    exam = build_exam(model, tokenizer, sentences, ["input_ids", "attention_mask"], MAX_LENGTH)
    assert exam.num_asked == expected.num_masked
    error = rounding(count_terms(num_layers=1, width=32, length=MAX_LENGTH))
    assert exam.measure(answer_with_torch(model), 0).loss == pytest.approx(expected.loss, rel=error)


def test_a_model_that_sees_both_sides_is_never_asked_for_next_tokens(tokenizer, sentences):
    hybrid = build(HybridLanguageModel, tokenizer, evaluates_causally=True)
    causal = build(CausalLanguageModel, tokenizer)
    for model, asks_most in ((hybrid, False), (causal, True)):
        (question, *_) = build_exam(model, tokenizer, sentences, ["input_ids"], MAX_LENGTH).questions
        assert ((question.labels >= 0).float().mean() > 0.5) == asks_most
        assert (question.inputs["input_ids"] == tokenizer.mask_token_id).any() == (not asks_most)


def test_latency_is_measured_on_full_rows_of_the_longest_input(tokenizer, sentences):
    exam = build_exam(build(MaskedLanguageModel, tokenizer), tokenizer, sentences, ["input_ids"], MAX_LENGTH)
    assert {rows: inputs["input_ids"].shape for rows, inputs in exam.timed.items()} == {
        rows: (rows, MAX_LENGTH) for rows in LATENCY_BATCHES
    }
    seen = []

    def answer(inputs):
        seen.append(inputs["input_ids"].shape)
        return np.zeros((*inputs["input_ids"].shape, tokenizer.vocab_size), dtype=np.float32)

    figures = exam.measure(answer, 17)
    assert figures.size_bytes == 17
    num_terms = tokenizer.vocab_size + exam.num_asked
    assert figures.loss == pytest.approx(np.log(tokenizer.vocab_size), rel=rounding(num_terms))
    assert min(seen.count((rows, MAX_LENGTH)) for rows in LATENCY_BATCHES) >= 5


def test_long_texts_are_cut_to_what_the_model_takes(tokenizer, sentences):
    model = build(MaskedLanguageModel, tokenizer)
    (question,) = build_exam(model, tokenizer, [" ".join(sentences)], ["input_ids"], MAX_LENGTH).questions
    assert question.inputs["input_ids"].shape == (1, MAX_LENGTH)
    assert question.inputs["input_ids"][0, -1] == tokenizer.sep_token_id


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_no_text_to_measure_on_is_refused(tokenizer, texts):
    with pytest.raises(InputError, match="held-out text is too small"):
        build_exam(build(MaskedLanguageModel, tokenizer), tokenizer, texts, ["input_ids"], MAX_LENGTH)
