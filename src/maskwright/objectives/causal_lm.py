"""`CausalLanguageModel`: the same encoder and prediction head, trained to continue text.

B rows, S row length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives.arguments import check_tokenizer_size
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.next_tokens import ask_next_tokens
from maskwright.text.tokenizer.tokenizer import Tokenizer


class CausalLanguageModel(MaskedLanguageModel):
    """Every token sees what comes before it in its document, and itself, and predicts the next one.

    Weights and arguments are those of a `MaskedLanguageModel`, so either can go on from the other. `forward` takes
    labels at their own places and gives logits of the next token, as `transformers`' causal models do.
    """

    mode = "clm"
    accuracy_name = "clm_accuracy"
    predicts_next = True
    evaluates_causally = True

    def __init__(self, encoder: nn.Module, vocab_size: int | None = None, *arguments: Any, **settings: Any) -> None:
        check_can_be_causal(encoder)
        super().__init__(encoder, vocab_size, *arguments, **settings)

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        """The batch as it is; every token's label is the one after it."""
        return ask_next_tokens(batch)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Nothing is masked, so it is the number of tokens alone that counts."""
        check_tokenizer_size(tokenizer, self.vocab_size)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        return self.corrupt(batch, seed, 0)

    def find_causal(self, batch: PackedBatch) -> Tensor:
        return torch.ones_like(batch.input_ids, dtype=torch.bool)

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        metrics = super().compute_metrics(sums)
        return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


def check_can_be_causal(encoder: nn.Module) -> None:
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"{type(encoder).__name__} always sees both sides of a token, so it cannot learn to continue text; use BERT"
            " or ModernBERT of ours, or train it by masking"
        )
