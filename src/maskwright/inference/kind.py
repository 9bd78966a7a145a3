"""What a kind of prediction has to say for itself; the pipeline does the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from maskwright.batch import PackedBatch
from maskwright.inference.samples import EncodedBatch, Sample

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Name = Callable[[int], str]
"""How an error calls the item of a number."""


@dataclass(frozen=True)
class Prepared:
    """An input as samples: one, or the windows of what is longer than the model."""

    samples: Sequence[Sample]


class Kind(ABC, Generic[Item, Answer]):
    """From inputs to samples, and from their hidden states to answers."""

    encoder: nn.Module
    pad_token_id: int
    item_name: ClassVar[str] = "text"
    """What errors call an input."""
    input_names: ClassVar[tuple[str, ...]] = ()
    """By which a call may give the parts of an input, where it has parts."""
    may_pair: ClassVar[bool] = False
    """Whether an input may be a pair of texts as well as one."""

    @property
    def module(self) -> nn.Module:
        """All that computes: the encoder, and the head of a kind that has one."""
        return self.encoder

    @property
    def example(self) -> dict[str, Any] | None:
        """A record with everything in it, of a kind whose answers may be empty: what the columns of a file are."""
        return None

    @abstractmethod
    def prepare(self, items: Sequence[Item], name: Name) -> Sequence[Prepared]:
        """The samples of some inputs; `name` says how an error calls the input at a place of `items`."""

    @abstractmethod
    def reduce(self, batch: EncodedBatch[Any]) -> Sequence[Any]:
        """What is needed of each sample's hidden states, off the device; hidden states are not kept."""

    @abstractmethod
    def answer(self, prepared: Any, reduced: Sequence[Any]) -> Answer:
        """The answer to an input, from what `reduce` gave to each of its samples."""

    @abstractmethod
    def record(self, item: Item, answer: Answer) -> dict[str, Any]:
        """An input and its answer as one line of a file: the same shape for every input."""

    @abstractmethod
    def as_items(self, inputs: Any) -> tuple[list[Item], bool]:
        """What a caller gave as a list, and whether it was a single input; anything else is an `InputError`."""

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        """(B, S) true for tokens that see only what comes before them; None when all see both sides."""
        return None
