"""The merges of byte-pair encoding learnt from counted words, as the trainers of `tokenizers` learn them from texts.

The library's trainers count words themselves and take no counts of others. Byte-pair encoding: Sennrich, Haddow and
Birch 2016.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

Pair = tuple[int, int]


def learn_merges(
    words: Mapping[str, int],
    first_tokens: Sequence[str],
    vocab_size: int,
    min_frequency: int,
    *,
    alphabet: Sequence[str] = (),
    continuation: str = "",
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary of `first_tokens`, characters and merged pieces, and the merges in their order.

    Characters of the words and the `alphabet` come in the order of their code points. `continuation` begins every piece
    that begins no word. Of pairs that are as frequent the one with the lower ids is merged first.
    """
    learner = _Learner(words, first_tokens, alphabet, continuation)
    while len(learner.vocabulary) < vocab_size and learner.merge_best(min_frequency):
        pass
    return learner.vocabulary, learner.merges


class _Learner:
    def __init__(
        self, words: Mapping[str, int], first_tokens: Sequence[str], alphabet: Sequence[str], continuation: str
    ) -> None:
        self.merges: list[tuple[str, str]] = []
        self.vocabulary: dict[str, int] = {}
        self._pieces: list[str] = []
        self._continuation = continuation
        for token in [*first_tokens, *sorted({*alphabet, *(character for word in words for character in word)})]:
            self._number(token)
        self._counts = list(words.values())
        self._words = [self._spell(word) for word in words]
        self._pair_counts: dict[Pair, int] = defaultdict(int)
        self._places: dict[Pair, set[int]] = defaultdict(set)
        for place, (ids, count) in enumerate(zip(self._words, self._counts, strict=True)):
            for pair in pairwise(ids):
                self._pair_counts[pair] += count
                self._places[pair].add(place)
        self._queue = [(-count, pair) for pair, count in self._pair_counts.items()]
        heapq.heapify(self._queue)

    def _number(self, piece: str) -> int:
        if piece not in self.vocabulary:
            self.vocabulary[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self.vocabulary[piece]

    def _spell(self, word: str) -> list[int]:
        return [self._number(f"{self._continuation}{one}" if place else one) for place, one in enumerate(word)]

    def merge_best(self, min_frequency: int) -> bool:
        """Merge the most frequent pair in all words; False if it is too rare."""
        while self._queue:
            count, pair = heapq.heappop(self._queue)
            now = self._pair_counts[pair]
            if -count != now:  # it has become rarer since
                if now > 0:
                    heapq.heappush(self._queue, (-now, pair))
                continue
            if now < max(1, min_frequency):
                return False
            self._merge(pair)
            return True
        return False

    def _merge(self, pair: Pair) -> None:
        first, second = self._pieces[pair[0]], self._pieces[pair[1]]
        merged = self._number(first + second.removeprefix(self._continuation))
        self.merges.append((first, second))
        grown: set[Pair] = set()
        for place in self._places.pop(pair):
            ids, count = self._words[place], self._counts[place]
            at = 0
            while at < len(ids) - 1:
                if (ids[at], ids[at + 1]) == pair:
                    ids[at : at + 2] = [merged]
                    if at:
                        self._pair_counts[ids[at - 1], pair[0]] -= count
                        self._add((ids[at - 1], merged), place, count, grown)
                    if at + 1 < len(ids):
                        self._pair_counts[pair[1], ids[at + 1]] -= count
                        self._add((merged, ids[at + 1]), place, count, grown)
                at += 1
        for other in grown:
            if self._pair_counts[other] > 0:
                heapq.heappush(self._queue, (-self._pair_counts[other], other))

    def _add(self, pair: Pair, place: int, count: int, grown: set[Pair]) -> None:
        self._pair_counts[pair] += count
        self._places[pair].add(place)
        grown.add(pair)
