"""Zero-shot: which of some labels a text has, asked of a model that knows what follows from what.

As the zero-shot-classification pipeline of `transformers` does it (Yin et al. 2019): the text is the premise and "This
example is LABEL." a hypothesis. L labels, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskwright.errors import InputError
from maskwright.inference.classify import average_logits, compute_softmax, refuse_token_head
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, list_rows
from maskwright.inference.runner import Name, Prepared, TaskKind
from maskwright.inference.texts import Floats, SampleCutter, as_texts
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer

_PLACE = "{}"
_DEFAULT_HYPOTHESIS = f"This example is {_PLACE}."
_ENTAILMENT = "entail"
_FEWEST_CLASSES = 2


@dataclass
class PreparedQuestions(Prepared):
    text: str
    counts: Sequence[int]
    """Samples of each label, one label after another."""


class ZeroShot(TaskKind[str, dict[str, Any]]):
    """`{"sequence", "labels", "scores"}`, the most probable label first.

    Scores add up to 1 over the labels; with `multi_label`, or for a single label, each is the probability of entailment
    against contradiction. A text longer than `max_length` is read in windows, whose logits are averaged by their number
    of tokens.
    """

    def __init__(
        self,
        model: TaskModel,
        tokenizer: Tokenizer,
        *,
        labels: str | Sequence[str] | None = (),
        hypothesis: str = _DEFAULT_HYPOTHESIS,
        multi_label: bool = False,
        max_length: int | None = None,
    ) -> None:
        """`labels` is a list, or one string with commas between them; None: they come with the calls."""
        if _PLACE not in hypothesis:
            raise InputError(
                f"the hypothesis '{hypothesis}' has no {_PLACE}; write {_PLACE} where a label should stand"
            )
        self.labels = [] if labels is None else _read_labels(labels)
        self.hypotheses = [hypothesis.replace(_PLACE, label) for label in self.labels]
        self.multi_label = multi_label
        refuse_token_head(model)
        super().__init__(model, tokenizer)
        self._entailment = find_entailment(model)
        self._cutter = SampleCutter(tokenizer, model.encoder, max_length)

    def prepare(self, items: Sequence[str], name: Name, tokenized: Any = None) -> list[PreparedQuestions]:
        if not self.labels:
            raise InputError("there are no labels to choose from; give them as candidate_labels=['one', 'another']")
        num_labels = len(self.labels)
        pairs = [(text, hypothesis) for text in items for hypothesis in self.hypotheses]
        cut = self._cutter.cut(pairs, lambda place: name(place // num_labels), ("", "the hypothesis for "))
        groups = [cut[start : start + num_labels] for start in range(0, len(cut), num_labels)]
        return [
            PreparedQuestions([sample for samples in group for sample in samples], text, [*map(len, group)])
            for text, group in zip(items, groups, strict=True)
        ]

    def reduce(self, batch: EncodedBatch[Sample]) -> Reduction:
        """(C,) of each sample."""
        return Reduction((self.compute_logits(batch),), list_rows)

    def answer(self, prepared: PreparedQuestions, reduced: Sequence[Floats]) -> dict[str, Any]:
        ends = np.cumsum(prepared.counts)
        logits = np.stack(
            [
                average_logits(prepared.samples[end - count : end], reduced[end - count : end])
                for end, count in zip(ends, prepared.counts, strict=True)
            ]
        )
        scores = self._score(logits)
        order = scores.argsort()[::-1]
        return {
            "sequence": prepared.text,
            "labels": [self.labels[one] for one in order],
            "scores": scores[order].tolist(),
        }

    def _score(self, logits: Floats) -> Floats:
        """(L,) of logits (L, C)"""
        if not self.multi_label and len(self.labels) > 1:
            return compute_softmax(logits[:, self._entailment])
        # transformers takes the first class for contradiction, or the last where the first is entailment
        contradiction = -1 if self._entailment == 0 else 0
        return compute_softmax(logits[:, [contradiction, self._entailment]])[:, 1]

    @property
    def example(self) -> dict[str, Any]:
        return {"labels": [""], "scores": [0.0]}

    def describe_input(self, item: str) -> dict[str, Any]:
        return {"sequence": item}

    def describe_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)


def find_entailment(model: TaskModel) -> int:
    """The number of the class that says that a hypothesis follows."""
    assert isinstance(model.task, Classification)
    classes = model.task.classes
    for number, name in enumerate(classes):
        if name.lower().startswith(_ENTAILMENT) and len(classes) >= _FEWEST_CLASSES:
            return number
    shown = ", ".join(f"'{name}'" for name in classes[:8]) + (" and more" if len(classes) > 8 else "")
    raise InputError(
        f"the model tells {shown} apart, and none of its classes begins with 'entail'; zero-shot needs a model that was"
        " fine-tuned on natural language inference"
    )


def _read_labels(labels: str | Sequence[str]) -> list[str]:
    read = [label.strip() for label in labels.split(",")] if isinstance(labels, str) else list(labels)
    if not read or not all(isinstance(label, str) and label.strip() for label in read):
        raise InputError(
            f"labels are {labels!r:.80}; zero-shot needs at least one label, each a text that is not empty"
        )
    if len(set(read)) < len(read):
        raise InputError(f"labels are {labels!r:.80}; give each label once")
    return read
