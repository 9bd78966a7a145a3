"""Sparse vectors of texts: the tokens of the vocabulary that stand for a text, with their weights.

N samples, V vocabulary, K tokens with a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import Floats, SampleCutter, as_texts
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.splade import SpladeRetrieval
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class SparseVector:
    tokens: NDArray[np.int32]
    """(K,) numbers of tokens, ascending."""
    weights: Floats
    """(K,), above 0."""


class EmbedSparse(TaskKind[str, SparseVector]):
    """The weights of a text's tokens; of a text longer than the model, the largest of its windows."""

    def __init__(self, model: TaskModel, tokenizer: Tokenizer, role: str = TEXT_ROLES[1]) -> None:
        super().__init__(model, tokenizer)
        assert isinstance(model.task, SpladeRetrieval)
        self._prompt = model.task.settings.prompts.get(role, "")
        self._cutter = SampleCutter(tokenizer, model.encoder, model.task.max_length)

    def tokenize(self, items: Sequence[str]) -> Any:
        return self._cutter.tokenize(self._complete(items))

    def prepare(self, items: Sequence[str], name: Name, tokenized: Any = None) -> list[Prepared]:
        return [Prepared(samples) for samples in self._cutter.cut(self._complete(items), name, tokenized=tokenized)]

    def _complete(self, texts: Sequence[str]) -> Sequence[str]:
        return [self._prompt + text if text.strip() else text for text in texts] if self._prompt else texts

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        return Reduction((self.compute_logits(batch),), _list_weights)

    def answer(self, prepared: Prepared, reduced: Sequence[SparseVector]) -> SparseVector:
        if len(reduced) == 1:
            return reduced[0]
        tokens = np.unique(np.concatenate([one.tokens for one in reduced]))
        weights = np.zeros(len(tokens), np.float32)
        for one in reduced:
            np.maximum.at(weights, np.searchsorted(tokens, one.tokens), one.weights)
        return SparseVector(tokens, weights)

    @property
    def example(self) -> dict[str, Any]:
        return {"tokens": ["a"], "weights": np.ones(1, np.float32)}

    def describe_answer(self, answer: SparseVector) -> dict[str, Any]:
        """The tokens, the largest weight first."""
        order = np.argsort(-answer.weights, kind="stable")
        return {
            "tokens": [self.tokenizer.token(int(token)) for token in answer.tokens[order]],
            "weights": answer.weights[order],
        }

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)


def _list_weights(weights: Tensor) -> list[SparseVector]:
    """Of (N, V)."""
    vectors = []
    for row in weights.numpy():
        tokens = row.nonzero()[0]
        vectors.append(SparseVector(tokens.astype(np.int32), row[tokens]))
    return vectors
