"""An encoder with a head for a task: what a trainer fine-tunes.

B rows, S row length, N documents of a row, C outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from maskwright.batch import PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch, TokenMasker
from maskwright.models.any_encoder import call_foreign, count_tokens, encode, find_max_length
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder
from maskwright.objectives.loss import LossSums
from maskwright.objectives.objective import Objective
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.tasks.batch import AskedBatch, TaskBatch
from maskwright.tasks.depth import compute_rate_factors, freeze_first_layers
from maskwright.tasks.task import Task
from maskwright.tasks.task_head import TaskHead, count_documents


class TaskOutput(dict[str, Tensor]):
    """A dictionary, so that any training loop can read it, whose keys are attributes too."""

    @property
    def loss(self) -> Tensor | None:
        return self.get("loss")

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class TaskModel(Objective):
    """Nothing is masked: `corrupt` hands over the batch with its targets."""

    mode = "task"
    mask_ratio = 0.0
    encoder: TunedEncoder
    """Or a module of the user's own, of which no more is asked than `models.any_encoder` asks of any."""

    def __init__(
        self, encoder: nn.Module, task_head: TaskHead, task: Task | None = None, layer_decay: float = 1.0
    ) -> None:
        """The task is the head's own unless given; `layer_decay` is a layer's learning rate against the next one's."""
        super().__init__()
        self.encoder = cast(TunedEncoder, encoder)
        self.task_head = task_head
        self.task = task if task is not None else task_head.build_task()
        self.layer_decay = layer_decay
        self.vocab_size = count_tokens(encoder)
        task_head.fit_to(encoder)

    def freeze_layers(self, num_layers: int) -> None:
        """Keep the embeddings and the first layers as they are."""
        freeze_first_layers(self.encoder, num_layers)

    def compute_rate_factors(self) -> dict[Tensor, float]:
        """What the learning rate of each weight is multiplied by; optimizers ask for it."""
        return compute_rate_factors(self, self.encoder, self.layer_decay)

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> TaskOutput:
        """Logits of a padded batch, (B, C) for whole texts or (B, S, C) for tokens, and the mean loss with labels.

        The inputs may come as one dictionary, labels too.
        """
        if isinstance(input_ids, Mapping):
            labels = input_ids.get("labels") if labels is None else labels
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        limit = find_max_length(self.encoder)
        if limit is not None and batch.input_ids.shape[1] > limit:
            raise InputError(
                f"the input has {batch.input_ids.shape[1]} tokens, the model has {limit} positions; shorten the input"
            )
        logits = self.task_head(self._encode_padded(batch), batch, 1)
        output = TaskOutput(logits=logits if self.task_head.is_per_token else logits.squeeze(1))
        if labels is not None:
            targets = self.task.read_labels(labels)
            sums = self.task.loss_sums(self.task.arrange(logits, batch, targets), targets)
            output["loss"] = sums.loss_sum / sums.num_labelled.clamp(min=1)
        return output

    def _encode_padded(self, batch: PackedBatch) -> Tensor:
        """Of rows of one document each, which encoders of others read as they are; so a graph can be traced."""
        if not isinstance(self.encoder, TransformersEncoder):
            return encode(self.encoder, batch)
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.document_ids}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        return call_foreign(self.encoder, inputs)

    def predict(self, batch: PackedBatch) -> Tensor:
        """Logits of a packed batch, (B, N, C) for whole documents; meaningless where a row has fewer than N."""
        return self._compute_logits(batch, count_documents(batch))

    def _compute_logits(self, batch: PackedBatch, num_documents: int) -> Tensor:
        return self.task_head(encode(self.encoder, batch), batch, num_documents)

    @property
    def token_masker(self) -> TokenMasker:
        raise InputError("a model fine-tuned for a task predicts no masked tokens; use the model it was made from")

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> AskedBatch:
        return AskedBatch.of(batch)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> AskedBatch:
        return AskedBatch.of(batch)

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        asked = corrupted.labels
        logits = self._compute_logits(corrupted.batch, num_documents=asked.shape[1])
        return self.task.loss_sums(self.task.arrange(logits, corrupted.batch, asked), asked)

    def answer(self, batch: TaskBatch) -> tuple[LossSums, Tensor]:
        """The sums of a batch and, (B, N, ...), what is kept of the answer to each document."""
        targets = batch.known_targets
        logits = self._compute_logits(batch, num_documents=targets.shape[1])
        arranged = self.task.arrange(logits, batch, targets)
        return self.task.loss_sums(arranged, targets), self.task.condense(arranged)

    @property
    def num_sums(self) -> int:
        return 2 + self.task.num_figures

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return self.task.compute_metrics(sums)

    def snapshot(self, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
        from maskwright.tasks.saving import snapshot_task

        return snapshot_task(self, tokenizer, wait)

    def load_weights(self, folder: str | Path) -> None:
        from maskwright.tasks.saving import fill_task

        fill_task(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> TaskModel:
        """A saved model with its labels, ours or one that transformers saved; `encoder` is one of your own."""
        from maskwright.tasks.saving import load_task

        return load_task(folder_or_id, encoder)
