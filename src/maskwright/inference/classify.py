"""Classify: the classes of texts or pairs of texts, as the text-classification pipeline of `transformers` answers.

N texts, C outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from tokenizers import Encoding

from maskwright.errors import InputError
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, list_rows
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import Floats, SampleCutter, TextOrPair, average_windows, list_inputs
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.text.tokenizer.tokenizer import Tokenizer

CLASSIFYING_TASKS = (Classification, MultiLabel, Regression)
ClassScore = dict[str, Any]
_PAIR_SIZE = 2


class Classify(TaskKind[TextOrPair, ClassScore | list[ClassScore]]):
    """`{"label", "score"}` of the best class, or with `top_k` a list of such, the best first; None: of all classes.

    Scores are probabilities: over all classes, or of a multi-label model for each class alone; a measure is given as it
    is. The windows of a text or pair longer than `max_length` have their logits averaged by their number of tokens.
    """

    may_pair = True

    def __init__(
        self,
        model: TaskModel,
        tokenizer: Tokenizer,
        *,
        top_k: int | Literal["best"] | None = "best",
        max_length: int | None = None,
    ) -> None:
        if top_k not in ("best", None) and (not isinstance(top_k, int) or top_k < 1):
            raise InputError(f"top_k is {top_k!r}; it must be at least 1, or None for all classes")
        refuse_token_head(model)
        super().__init__(model, tokenizer)
        self.top_k = top_k
        self._cutter = SampleCutter(tokenizer, model.encoder, max_length)
        self._labels = [str(name) for name in model.task.describe()["id2label"].values()]

    @property
    def num_labels(self) -> int:
        return len(self._labels)

    def tokenize(self, items: Sequence[TextOrPair]) -> list[Encoding]:
        return self._cutter.tokenize(items)

    def prepare(
        self, items: Sequence[TextOrPair], name: Name, tokenized: Sequence[Encoding] | None = None
    ) -> list[Prepared]:
        return [Prepared(samples) for samples in self._cutter.cut(items, name, tokenized=tokenized)]

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        """(C,) of each sample."""
        return Reduction((self.compute_logits(batch),), list_rows)

    def answer(self, prepared: Prepared, reduced: Sequence[Floats]) -> ClassScore | list[ClassScore]:
        return self.answer_all([(prepared, reduced)])[0]

    def answer_all(self, asked: Sequence[tuple[Prepared, Sequence[Floats]]]) -> list[ClassScore | list[ClassScore]]:
        if not asked:
            return []
        scores = self._score(np.stack([average_logits(prepared.samples, reduced) for prepared, reduced in asked]))
        best_first = np.argsort(-scores, axis=1, kind="stable")
        if self.top_k is not None:
            best_first = best_first[:, : 1 if self.top_k == "best" else self.top_k]
        chosen = zip(best_first.tolist(), np.take_along_axis(scores, best_first, 1).tolist(), strict=True)
        answers = [
            [{"label": self._labels[number], "score": score} for number, score in zip(numbers, values, strict=True)]
            for numbers, values in chosen
        ]
        return [classes[0] for classes in answers] if self.top_k == "best" else [*answers]

    def _score(self, logits: Floats) -> Floats:
        """(N, C) The choice is that of transformers, for which one output is a yes or no, unless it is a measure."""
        if isinstance(self.model.task, Regression):
            return logits
        if isinstance(self.model.task, MultiLabel) or logits.shape[1] == 1:
            return (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
        return compute_softmax(logits)

    @property
    def example(self) -> dict[str, Any]:
        score = {"label": "", "score": 0.0}
        return self.describe_answer(score if self.top_k == "best" else [score])

    def describe_input(self, item: TextOrPair) -> dict[str, Any]:
        return {"first": item[0], "second": item[1]} if isinstance(item, tuple) else {"text": item}

    def describe_answer(self, answer: ClassScore | list[ClassScore]) -> dict[str, Any]:
        return answer if isinstance(answer, dict) else {"answers": answer}

    def as_items(self, inputs: Any) -> tuple[list[TextOrPair], bool]:
        """A text, or a pair as a tuple of two or as `{"text", "text_pair"}`; several are a list of such."""
        if isinstance(inputs, str | tuple | Mapping):
            return [_as_item(inputs)], True
        if not isinstance(inputs, Iterable):
            raise InputError(f"the input is a {type(inputs).__name__}; expected a text, a pair of texts or a list")
        return [_as_item(one) for one in list_inputs(inputs)], False


def compute_softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), dtype=np.float32)


def _as_item(given: Any) -> TextOrPair:
    texts = [given[key] for key in ("text", "text_pair") if key in given] if isinstance(given, Mapping) else given
    if isinstance(texts, str):
        return texts
    if isinstance(texts, tuple | list) and len(texts) == _PAIR_SIZE:
        first, second = list_inputs(texts)
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    raise InputError(f"an input is {given!r:.80}; expected a text or a pair of texts")


def refuse_token_head(model: TaskModel) -> None:
    if model.task_head.is_per_token:
        raise InputError(
            f"the model's head is a {type(model.task_head).__name__}, which has no answer for a whole text; choose"
            " a model that was fine-tuned for classification or regression"
        )


def average_logits(samples: Sequence[Sample], logits: Sequence[Floats]) -> Floats:
    """The mean over the windows of a text, each weighted by its number of tokens."""
    return average_windows(logits, [len(sample.ids) for sample in samples])
