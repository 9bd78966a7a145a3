"""Heads for encoders of the user's own."""

from __future__ import annotations

import pytest
import torch

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.tasks.nlp_heads import NLPTaskConfig, NLPTaskType, create_nlp_head


def test_a_head_answers_with_a_logit_for_each_class() -> None:
    encoder = BERT.from_variant("tiny", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20)
    head = create_nlp_head(NLPTaskConfig("sentiment", NLPTaskType.SENTIMENT_ANALYSIS, num_classes=3), input_dim=16)
    output = head(encoder(input_ids=torch.randint(0, 20, (4, 6))))
    assert output.logits.shape == (4, 3)
    assert output["logits"] is output.logits
    output.logits.sum().backward()
    assert encoder.embeddings.word.weight.grad is not None


def test_a_measure_is_one_number_of_a_plain_dictionary() -> None:
    head = create_nlp_head(NLPTaskConfig("sts", NLPTaskType.TEXT_SIMILARITY), input_dim=8)
    assert head({"last_hidden_state": torch.randn(2, 3, 8)}).logits.shape == (2, 1)


def test_dropout_is_the_tasks() -> None:
    head = create_nlp_head(NLPTaskConfig("x", NLPTaskType.TEXT_CLASSIFICATION, 2, dropout_rate=0.7), input_dim=8)
    assert head.transform.dropout.p == 0.7


@pytest.mark.parametrize(
    ("kind", "num_classes", "words"),
    [
        (NLPTaskType.SENTIMENT_ANALYSIS, None, "'x' has num_classes=None; it needs at least 2"),
        (NLPTaskType.SENTIMENT_ANALYSIS, 1, "it needs at least 2"),
        (NLPTaskType.TEXT_SIMILARITY, 3, "a measure has one number"),
    ],
)
def test_a_task_without_a_fitting_number_of_classes_is_refused(
    kind: NLPTaskType, num_classes: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        NLPTaskConfig("x", kind, num_classes)


def test_a_width_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="input_dim is 0"):
        create_nlp_head(NLPTaskConfig("x", NLPTaskType.TEXT_SIMILARITY), input_dim=0)
