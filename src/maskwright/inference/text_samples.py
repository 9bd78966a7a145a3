"""Texts and pairs of texts to samples: [CLS] a [SEP], or [CLS] a [SEP] b [SEP]; windows of what is longer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.errors import InputError
from maskwright.inference.kind import Name
from maskwright.inference.samples import Sample
from maskwright.inference.texts import NUM_SPECIALS, choose_max_length, encode_texts
from maskwright.inference.windows import find_windows
from maskwright.tasks.features import find_tokens_between
from maskwright.text.tokenizer.tokenizer import Tokenizer

Pair = tuple[str, str]
TextOrPair = str | Pair
_OF_PAIR = ("the first text of ", "the second text of ")
_FEWEST_OF_A_TEXT = 4
"""Tokens that a window must have of each text of a pair."""


class SampleCutter:
    """Every token of a text is in a sample.

    A pair that is too long keeps its shorter text whole where that fits half the room, and has windows of the longer
    one; where both are longer, their windows go side by side.
    """

    def __init__(self, tokenizer: Tokenizer, encoder: nn.Module, max_length: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._max_length = choose_max_length(encoder, max_length)
        self._between = find_tokens_between(tokenizer)

    def cut(self, items: Sequence[TextOrPair], name: Name, of_pair: Pair = _OF_PAIR) -> list[list[Sample]]:
        """The samples of each text or pair; `of_pair` is what an error puts before the name of a pair."""
        owners = [(place, part) for place, item in enumerate(items) for part in range(_count_texts(item))]
        texts = [text for item in items for text in ([item] if isinstance(item, str) else item)]

        def name_text(number: int) -> str:
            place, part = owners[number]
            is_pair = _count_texts(items[place]) > 1
            return f"{of_pair[part] if is_pair else ''}{name(place)}"

        rows = iter(encode_texts(self._tokenizer, self._encoder, texts, name_text))
        return [
            self._cut_text(next(rows)) if isinstance(item, str) else self._cut_pair(next(rows), next(rows))
            for item in items
        ]

    def _cut_text(self, ids: list[int]) -> list[Sample]:
        cls, sep = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        windows = find_windows(len(ids), self._max_length - NUM_SPECIALS)
        return [Sample([cls, *ids[start:stop], sep]) for start, stop in windows]

    def _cut_pair(self, first: list[int], second: list[int]) -> list[Sample]:
        room = self._max_length - NUM_PAIR_SPECIALS - len(self._between)
        if len(first) + len(second) <= room:
            return [self._join(first, second)]
        if room < 2 * _FEWEST_OF_A_TEXT:
            raise InputError(
                f"the longest input has {self._max_length} tokens, which is too little for windows of pairs; shorten"
                " the texts or raise max_length"
            )
        of_shorter = min(len(first), len(second), room // 2)
        first_room = of_shorter if len(first) < len(second) else room - of_shorter
        firsts, seconds = find_windows(len(first), first_room), find_windows(len(second), room - first_room)
        count = max(len(firsts), len(seconds))
        return [
            self._join(first[slice(*_take(firsts, number, count))], second[slice(*_take(seconds, number, count))])
            for number in range(count)
        ]

    def _join(self, first: list[int], second: list[int]) -> Sample:
        cls, sep = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        beginning, end = [cls, *first, sep], [*self._between, *second, sep]
        return Sample([*beginning, *end], [0] * len(beginning) + [1] * len(end))


def _count_texts(item: TextOrPair) -> int:
    return 1 if isinstance(item, str) else len(item)


def _take(windows: Sequence[tuple[int, int]], number: int, count: int) -> tuple[int, int]:
    """The window that goes with one of `count`, spread evenly over all of them."""
    return windows[number * len(windows) // count]
