"""Examples of several texts, each a document of its own. G texts of an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from maskwright.data.rows import NUM_SPECIALS
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.tasks.features import Features
from maskwright.tasks.similarity.examples import SimilarityExample
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class GroupFeatures(Features):
    """The texts of an example are G documents that follow each other in the store."""

    group_size: int = 2
    are_compared: bool = False
    """Whether the loss compares the examples of a batch with each other."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Tokens of all texts of each example."""
        sizes: NDArray[np.int64] = (np.diff(self.store.offsets) + NUM_SPECIALS).reshape(-1, self.group_size).sum(1)
        return sizes


def featurize_groups(
    examples: Sequence[SimilarityExample], tokenizer: Tokenizer, max_length: int, are_compared: bool
) -> GroupFeatures:
    """Each text longer than the model loses its end; an example goes where one of its texts has no token."""
    group_size, max_tokens = len(examples[0].texts), max_length - NUM_SPECIALS
    ids = tokenizer.encode_batch([text for example in examples for text in example.texts])
    groups = [ids[start : start + group_size] for start in range(0, len(ids), group_size)]
    chosen = [number for number, group in enumerate(groups) if all(group)]
    if not chosen:
        raise InputError(f"no pair up to {examples[-1].place} has tokens of the model's vocabulary; check the columns")
    documents = [text[:max_tokens] for number in chosen for text in groups[number]]
    num_cut = sum(any(len(text) > max_tokens for text in groups[number]) for number in chosen)
    return GroupFeatures(
        store=TokenStore.from_documents(documents, tokenizer.vocab_size),
        examples=[examples[number] for number in chosen],
        num_cut=num_cut,
        num_empty=len(examples) - len(chosen),
        group_size=group_size,
        are_compared=are_compared,
    )
