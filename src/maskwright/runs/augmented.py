"""Training on texts that lose other words in every epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from maskwright.batch import PackedBatch
from maskwright.data.loader import PackedLoader
from maskwright.data.shards import Shards
from maskwright.sections.data import AugmentationConfig
from maskwright.text.augmentation import SampleKey, augment

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
