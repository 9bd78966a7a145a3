"""Students: masked language models that also learn from a larger one, which sees the same masked rows.

DistilBERT's objective (Sanh et al. 2019) compares predictions and hidden states, MiniLM's (Wang et al. 2020) the
self-attention of the last layers. B rows, S row length, D width, M masked slots, V vocabulary, R relation heads.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.any_encoder import encode, find_hidden_size
from maskwright.models.attention import build_attention_mask
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives import arguments
from maskwright.objectives.loss import LossSums, compute_loss_sums, gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.objective import Objective

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, kw_only=True)
class DistillationBatch(CorruptedBatch):
    """A masked batch whose loss has parts over masked tokens and parts over all real ones."""

    asks_all: tuple[bool, ...]
    """For each part of the loss, whether it is over all real tokens."""

    @property
    def is_real(self) -> Tensor:
        return ~self.batch.is_padding

    @property
    def counts(self) -> Tensor:
        num_masked, num_real = self.selected.sum(), self.is_real.sum()
        return torch.stack([num_real if asks_all else num_masked for asks_all in self.asks_all])


class Student(MaskedLanguageModel):
    """A masked language model with a teacher, which is neither trained nor saved with it.

    The first part of the loss is that of the masked tokens; the others are subclasses'. `settings` are those of
    `MaskedLanguageModel`.
    """

    part_names: ClassVar[tuple[str, ...]]
    """Of the parts after the first."""
    asks_all: ClassVar[tuple[bool, ...]]
    teacher: MaskedLanguageModel

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *,
        teacher: MaskedLanguageModel,
        part_weights: tuple[float, ...],
        **settings: Any,
    ) -> None:
        super().__init__(encoder, vocab_size, **settings)
        for name, weight in zip(("mlm_loss", *self.part_names), part_weights, strict=True):
            arguments.check_positive(**{f"the weight of {name}": weight})
        if self.vocab_size != teacher.vocab_size:
            raise InputError(
                f"the student's vocab_size is {self.vocab_size}, the teacher's {teacher.vocab_size}; both must read the"
                " same tokens"
            )
        self.part_weights = part_weights
        self.__dict__["teacher"] = teacher.eval().requires_grad_(False)  # not as a part, which would be saved

    @abstractmethod
    def compare(
        self, hidden: Tensor, logits: Tensor, questions: DistillationBatch, capacity: int | None
    ) -> list[Tensor]:
        """The other parts of the loss, as sums, from the student's hidden states (B, S, D) and logits (M, V)."""

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> DistillationBatch:
        return self._extend(super().corrupt(batch, seed, epoch, ratio, progress))

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> DistillationBatch:
        return self._extend(super().corrupt_for_evaluation(batch, seed, ratio))

    def _extend(self, corrupted: CorruptedBatch) -> DistillationBatch:
        given = {field.name: getattr(corrupted, field.name) for field in fields(corrupted)}
        return DistillationBatch(**given, asks_all=(False, *self.asks_all))

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        questions = corrupted if isinstance(corrupted, DistillationBatch) else self._extend(corrupted)
        capacity = questions.num_slots if questions.labels.is_cuda else None
        hidden = encode(self.encoder, questions.batch)
        slots, labels = gather_labelled(hidden, questions.labels, capacity)
        logits = self.predict(slots).float()
        tokens = compute_loss_sums(logits, labels)
        num_real = questions.is_real.sum()
        counts = [num_real if asks_all else tokens.num_labelled for asks_all in questions.asks_all]
        losses = [tokens.loss_sum, *self.compare(hidden, logits, questions, capacity)]
        return LossSums(torch.stack(losses), torch.stack(counts), tokens.figures)

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """`loss` is the weighted sum of all parts."""
        num_parts = len(self.part_weights)
        losses, counts, num_correct = sums[:num_parts], sums[num_parts : 2 * num_parts], sums[-1]
        means = [loss / (count or float("nan")) for loss, count in zip(losses, counts, strict=True)]
        return {
            "loss": sum(weight * mean for weight, mean in zip(self.part_weights, means, strict=True)),
            "mlm_loss": means[0],
            self.accuracy_name: num_correct / (counts[0] or float("nan")),
            **dict(zip(self.part_names, means[1:], strict=True)),
        }

    def compile_parts(self) -> None:
        """The head is not compiled: its logits are compared whole."""
        Objective.compile_parts(self)

    @property
    def is_recordable(self) -> bool:
        return False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The teacher goes where the student goes."""
        self.teacher._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved


class SoftLabelStudent(Student):
    """DistilBERT's objective: the teacher's predictions at masked tokens, softened, and its hidden states.

    Predictions are compared by the Kullback-Leibler divergence from the teacher's at a temperature, times its square;
    hidden states by the cosine of the angle between them, at every token.
    """

    part_names = ("soft_label_loss", "hidden_loss")
    asks_all = (False, True)

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *,
        teacher: MaskedLanguageModel,
        temperature: float = 2.0,
        part_weights: tuple[float, ...] = (2.0, 5.0, 1.0),
        **settings: Any,
    ) -> None:
        """`part_weights` are those of masked tokens, soft labels and hidden states."""
        super().__init__(encoder, vocab_size, teacher=teacher, part_weights=part_weights, **settings)
        arguments.check_positive(temperature=temperature)
        _check_widths(encoder, teacher)
        self.temperature = temperature

    def compare(
        self, hidden: Tensor, logits: Tensor, questions: DistillationBatch, capacity: int | None
    ) -> list[Tensor]:
        with torch.no_grad():
            taught_hidden = encode(self.teacher.encoder, questions.batch)
            slots, labels = gather_labelled(taught_hidden, questions.labels, capacity)
            taught = self.teacher.predict(slots).float()
        divergences = compute_divergence(taught / self.temperature, logits / self.temperature)
        soft_loss = (divergences * (labels != IGNORED_LABEL)).sum() * self.temperature**2
        return [soft_loss, _compare_states(hidden, taught_hidden, questions)]


def _check_widths(encoder: nn.Module, teacher: MaskedLanguageModel) -> None:
    widths = find_hidden_size(encoder), find_hidden_size(teacher.encoder)
    if widths[0] != widths[1]:
        raise InputError(
            f"the student is {widths[0]} wide, the teacher {widths[1]}; hidden states are compared at equal widths:"
            " choose the objective minilm without distillation.hidden_weight, or leave out the width"
        )


def _compare_states(hidden: Tensor, taught: Tensor, questions: DistillationBatch) -> Tensor:
    """The sum over real tokens of one minus the cosine of their hidden states (B, S, D)."""
    cosines = F.cosine_similarity(hidden.float(), taught.float(), dim=-1)
    return ((1 - cosines) * questions.is_real).sum()


class RelationStudent(Student):
    """MiniLM's objective: how the last layer's queries meet its keys, and its values each other.

    Both are distributions over the tokens of a document, compared by the Kullback-Leibler divergence from the teacher's
    and averaged over `relation_heads`, parts of equal width; with as many as either has attention heads, these are
    MiniLM's, else MiniLMv2's (Wang et al. 2021). The student may be of any width that they divide.
    """

    part_names: ClassVar[tuple[str, ...]] = ("query_key_loss", "value_loss")
    asks_all: ClassVar[tuple[bool, ...]] = (True, True)
    encoder: PackedEncoder

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *,
        teacher: MaskedLanguageModel,
        relation_heads: int | None = None,
        part_weights: tuple[float, ...] = (1.0, 1.0, 1.0),
        **settings: Any,
    ) -> None:
        """`relation_heads` are the teacher's attention heads unless set; `part_weights` those of masked tokens, queries
        with keys, and values.
        """
        super().__init__(encoder, vocab_size, teacher=teacher, part_weights=part_weights, **settings)
        both = [_check_native(one) for one in (encoder, teacher.encoder)]
        self.relation_heads = both[1].config.num_attention_heads if relation_heads is None else relation_heads
        for one, name in zip(both, ("student", "teacher"), strict=True):
            if self.relation_heads < 1 or one.hidden_size % self.relation_heads:
                raise InputError(
                    f"the {name} is {one.hidden_size} wide, which {self.relation_heads} relation heads do not divide;"
                    " choose another width, or distillation.relation_heads"
                )
            one.keeps_last_call = True

    def compare(
        self, hidden: Tensor, logits: Tensor, questions: DistillationBatch, capacity: int | None
    ) -> list[Tensor]:
        own = self._split(self.encoder)
        with torch.no_grad():
            assert isinstance(self.teacher.encoder, PackedEncoder)
            taught_hidden = encode(self.teacher.encoder, questions.batch)
            taught = self._split(self.teacher.encoder)
        may_see = build_attention_mask(questions.batch.document_ids)
        assert may_see is not None
        is_real = questions.is_real[:, None]  # of the queries, in every head
        sums = []
        for left, right in ((0, 1), (2, 2)):
            theirs, ours = (_relate(one[left], one[right], may_see) for one in (taught, own))
            sums.append((compute_divergence(theirs, ours) * is_real).sum() / self.relation_heads)
        return sums + self._compare_more(hidden, taught_hidden, questions)

    def _compare_more(self, hidden: Tensor, taught: Tensor, questions: DistillationBatch) -> list[Tensor]:
        """Parts of the loss that a subclass adds, from hidden states (B, S, D)."""
        return []

    def _split(self, encoder: PackedEncoder) -> list[Tensor]:
        """Query, key and value (B, R, S, D / R) of the last layer."""
        projected = (one.transpose(1, 2).flatten(2) for one in encoder.project_last())
        return [one.unflatten(-1, (self.relation_heads, -1)).transpose(1, 2) for one in projected]


class RelationStateStudent(RelationStudent):
    """MiniLM's objective, and the direction of the last hidden states: what vectors of texts are made of."""

    part_names = (*RelationStudent.part_names, "hidden_loss")
    asks_all = (*RelationStudent.asks_all, True)

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *,
        teacher: MaskedLanguageModel,
        part_weights: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0),
        **settings: Any,
    ) -> None:
        """`part_weights` are those of masked tokens, queries with keys, values, and hidden states."""
        super().__init__(encoder, vocab_size, teacher=teacher, part_weights=part_weights, **settings)
        _check_widths(encoder, teacher)

    def _compare_more(self, hidden: Tensor, taught: Tensor, questions: DistillationBatch) -> list[Tensor]:
        return [_compare_states(hidden, taught, questions)]


def _check_native(encoder: nn.Module) -> PackedEncoder:
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"{type(encoder).__name__} does not show its queries, keys and values; the objective minilm is for"
            " Maskwright's own encoders"
        )
    return encoder


def _relate(left: Tensor, right: Tensor, may_see: Tensor) -> Tensor:
    """(B, R, S, S) scaled products, as small as can be between documents."""
    with torch.autocast(left.device.type, enabled=False):
        scores = left.float() @ right.float().mT * left.shape[-1] ** -0.5
    return scores.masked_fill(~may_see, torch.finfo(scores.dtype).min)


def compute_divergence(taught: Tensor, own: Tensor) -> Tensor:
    """The Kullback-Leibler divergence from the teacher's distributions (..., V), both as logits: (...)."""
    return F.kl_div(own.log_softmax(-1), taught.log_softmax(-1), reduction="none", log_target=True).sum(-1)


def copy_layers(student: MaskedLanguageModel, teacher: MaskedLanguageModel, layers: Sequence[int]) -> None:
    """Give a student of the teacher's width its embeddings, its head, and the layers of these numbers."""
    own, theirs = student.state_dict(), teacher.state_dict()
    for name in own:
        found = _LAYER.fullmatch(name)
        source = name if found is None else f"encoder.layers.{layers[int(found[1])]}.{found[2]}"
        if source in theirs:  # ModernBERT's first layer lacks the norm that the others begin with
            own[name] = theirs[source]
    student.load_state_dict(own)


def spread_layers(num_layers: int, num_taught: int) -> list[int]:
    """Evenly spaced layers of a teacher, the first and the last among them: 6 of 12 are DistilBERT's 0 2 4 7 9 11."""
    return [round(layer * (num_taught - 1) / max(1, num_layers - 1)) for layer in range(num_layers)]
