"""Named entities and other classes of words, with their places in the text. T tokens, C classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskwright.inference.entity_groups import EntityGrouper, EntityRecord
from maskwright.inference.kind import Kind, Name, Prepared
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.inference.texts import NUM_SPECIALS, as_texts, choose_max_length
from maskwright.inference.token_pieces import TextPieces, encode_pieces, find_word_windows
from maskwright.inference.windows import Floats
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.ner.token_head import TokenHead
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode


@dataclass(frozen=True)
class AnsweringSample(Sample):
    first: int = 0
    stop: int = 0
    """The tokens it answers for, counted in the sample."""


@dataclass(frozen=True)
class PreparedPieces(Prepared):
    pieces: TextPieces


class FindEntities(Kind[str, list[EntityRecord]]):
    """The entities of a text, each with `entity_group`, `score`, `word`, `start` and `end`.

    A word has the class of its first token (`first`), of its surest one (`max`) or of the mean of all (`average`).
    `simple` lets each token have its own, and `none` lists the tokens: `entity`, `score`, `index`, `word`, `start` and
    `end`. A text longer than `max_length` is read in overlapping windows.
    """

    def __init__(
        self, model: TaskModel, tokenizer: Tokenizer, *, aggregation: str = "first", max_length: int | None = None
    ) -> None:
        assert isinstance(model.task, TokenClassification)
        assert isinstance(model.task_head, TokenHead)
        self.model = model
        self.encoder = model.encoder
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id
        self._task_head = model.task_head
        self._grouper = EntityGrouper(model.task.classes, aggregation, self._decode)
        self._size = choose_max_length(self.encoder, max_length) - NUM_SPECIALS

    @property
    def module(self) -> TaskModel:
        return self.model

    @property
    def example(self) -> dict[str, Any]:
        """A text may have no entity, and then says nothing of what one looks like."""
        return self.record("", [self._grouper.example])

    def prepare(self, items: Sequence[str], name: Name) -> list[PreparedPieces]:
        return [self._cut(pieces) for pieces in encode_pieces(self.tokenizer, self.encoder, items, name)]

    def _cut(self, pieces: TextPieces) -> PreparedPieces:
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        samples = [
            AnsweringSample([cls, *pieces.ids[start:stop], sep], first=1 + begin - start, stop=1 + end - start)
            for (start, stop), (begin, end) in find_word_windows(pieces.continues, self._size)
        ]
        return PreparedPieces(samples, pieces)

    def reduce(self, batch: EncodedBatch[AnsweringSample]) -> list[Floats]:
        """Probabilities (T, C) of the tokens that each sample answers for."""
        with evaluation_mode(self.model):
            logits = self._task_head.transform(batch.hidden.to(self._task_head.output.weight.dtype))
        scores = logits.float().softmax(-1).cpu().numpy()
        parts = np.split(scores, batch.starts[1:].cpu().numpy())
        # A copy, so that the batch's array need not be kept for a part of it.
        return [part[one.first : one.stop].copy() for part, one in zip(parts, batch.samples, strict=True)]

    def answer(self, prepared: PreparedPieces, reduced: Sequence[Floats]) -> list[EntityRecord]:
        return self._grouper.group(prepared.pieces, np.concatenate(reduced))

    def record(self, item: str, answer: list[EntityRecord]) -> dict[str, Any]:
        return {"text": item, "entities": answer}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)

    def _decode(self, tokens: list[str]) -> str:
        decoder = self.tokenizer.backend.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(tokens))
