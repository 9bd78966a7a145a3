"""Vectors of each token of a text, for late interaction.

N samples, T tokens, C numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import Floats, SampleCutter, as_texts, encode_texts
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.colbert import LateRetrieval, fill_query
from maskwright.text.tokenizer.tokenizer import Tokenizer

_QUERY = TEXT_ROLES[0]


class EmbedTokens(TaskKind[str, Floats]):
    """Vectors (T, C) of a text's tokens that count; of a document longer than the model, those of all its windows."""

    def __init__(self, model: TaskModel, tokenizer: Tokenizer, role: str = TEXT_ROLES[1]) -> None:
        super().__init__(model, tokenizer)
        assert isinstance(model.task, LateRetrieval)
        self._settings = model.task.settings
        self._is_query = role == _QUERY
        self._prompt = self._settings.prompts.get(role, "")
        self._cutter = SampleCutter(tokenizer, model.encoder, self._settings.max_length)

    def prepare(self, items: Sequence[str], name: Name, tokenized: Any = None) -> list[Prepared]:
        texts = [self._prompt + text if text.strip() else text for text in items]
        if not (self._is_query and self._settings.query_length):
            return [Prepared(samples) for samples in self._cutter.cut(texts, name)]
        rows = encode_texts(self.tokenizer, self.encoder, texts, name)
        return [Prepared((Sample(fill_query(ids, self._settings, self.tokenizer)),)) for ids in rows]

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        ends = np.cumsum(batch.lengths)[:-1]
        return Reduction((self.compute_logits(batch),), lambda vectors: np.split(vectors.numpy(), ends))

    def answer(self, prepared: Prepared, reduced: Sequence[Floats]) -> Floats:
        vectors = np.concatenate(reduced)
        if self._is_query:
            return vectors
        ids = np.concatenate([np.asarray(sample.ids) for sample in prepared.samples])
        return vectors[~np.isin(ids, self._settings.skipped_tokens)]

    @property
    def example(self) -> dict[str, Any]:
        return {"embedding": np.zeros((1, 1), np.float32)}

    def describe_answer(self, answer: Floats) -> dict[str, Any]:
        return {"embedding": answer}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)
