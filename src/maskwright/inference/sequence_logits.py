"""The logits of whole texts, for all kinds of prediction that are made of them. N samples, D width, C outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.inference.windows import Floats, average_windows
from maskwright.tasks.model import TaskModel
from maskwright.tasks.task_head import SequenceHead
from maskwright.training.compute.device import evaluation_mode


class SequenceLogits:
    """Runs the head on a batch of samples, and puts the windows of a text together."""

    def __init__(self, model: TaskModel) -> None:
        if not isinstance(model.task_head, SequenceHead):
            raise InputError(
                f"the model's head is a {type(model.task_head).__name__}, which has no answer for a whole text; choose"
                " a model that was fine-tuned for classification or regression"
            )
        self._model = model
        self._head = model.task_head

    def reduce(self, batch: EncodedBatch[Sample]) -> list[Floats]:
        """(C,) of each sample."""
        with evaluation_mode(self._model):
            pooled = self._pool(batch).to(self._head.output.weight.dtype)
            return list(self._head.transform(pooled).float().cpu().numpy())

    def _pool(self, batch: EncodedBatch[Sample]) -> Tensor:
        """(N, D)"""
        if self._head.pooling == "cls":
            return batch.hidden[batch.starts]
        return torch.segment_reduce(batch.hidden.float(), "mean", lengths=batch.lengths, axis=0)


def average_logits(samples: Sequence[Sample], logits: Sequence[Floats]) -> Floats:
    """The mean over the windows of a text, each weighted by its number of tokens."""
    return average_windows(logits, [len(sample.ids) for sample in samples])
