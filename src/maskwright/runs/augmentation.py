"""Training on texts that lose other words in every epoch, before they are tokenized.

Whether a text changes, and which words it loses, is a function of (seed, epoch, sample, place of the word) alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import torch

from maskwright.batch import PackedBatch
from maskwright.data.loader import PackedLoader
from maskwright.data.shards import Shards
from maskwright.randomness import Stream, compute_key, random_uint32, threshold
from maskwright.sections.data import AugmentationConfig

_WORD = re.compile(r"\S+\s*")


class SampleKey(NamedTuple):
    """What names one showing of one sample."""

    seed: int
    epoch: int
    sample: int


def augment(text: str, sample_key: SampleKey, config: AugmentationConfig) -> str:
    """`augment_text` as the configuration asks for it."""
    return augment_text(text, sample_key, config.probability, config.word_dropout)


def augment_text(text: str, sample_key: SampleKey, probability: float = 0.3, dropout: float = 0.1) -> str:
    """With a probability, the text without some of its words; each is lost at the rate `dropout`, never all of them.

    Words are what blanks separate, so text of a script without blanks stays as it is.
    """
    if not probability or not dropout:
        return text
    key = compute_key(sample_key.seed, sample_key.epoch, Stream.AUGMENTATION)
    sample = torch.tensor(sample_key.sample)
    if int(random_uint32(key, sample, torch.tensor(0))) >= threshold(probability):
        return text
    words = _WORD.findall(text)
    draws = random_uint32(key, sample, torch.arange(1, len(words) + 1))
    kept = draws >= threshold(dropout)
    if bool(kept.all()):
        return text
    if not bool(kept.any()):
        kept[int(draws.argmax())] = True
    return "".join(word for word, is_kept in zip(words, kept.tolist(), strict=True) if is_kept).strip()


Encode = Callable[[Sequence[Iterable[str]]], Shards]


class AugmentedLoader(PackedLoader):
    """Holds texts; each epoch they are augmented, tokenized and packed anew, as a function of (seed, epoch)."""

    def __init__(
        self, texts: Sequence[Iterable[str]], encode: Encode, augmentation: AugmentationConfig, **options: Any
    ) -> None:
        self._texts, self._encode, self._augmentation, self._options = texts, encode, augmentation, options
        super().__init__(self._shards_of(options["seed"], epoch=0), **options)

    @property
    def faster_advice(self) -> str:
        return (
            "every epoch augments and tokenizes all texts anew: switch that off (augmentation.probability=0), or train"
            " on the folder that maskwright prepare makes"
        )

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[PackedBatch]:
        return self.for_epoch(epoch).epoch(epoch, start_batch)

    def for_epoch(self, epoch: int) -> PackedLoader:
        loader = PackedLoader(self._shards_of(self.seed, epoch), **self._options)
        return loader.for_rank(self.rank, self.world_size)

    def _shards_of(self, seed: int, epoch: int) -> Shards:
        numbers = count()

        def augmented(documents: Iterable[str]) -> Iterator[str]:
            for text in documents:
                yield augment(text, SampleKey(seed, epoch, next(numbers)), self._augmentation)

        return self._encode([augmented(documents) for documents in self._texts])  # one source after the other
