"""A text as tokens that know their characters and their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import nn

from maskwright.inference.kind import Name
from maskwright.inference.texts import refuse_empty, refuse_unknown
from maskwright.inference.windows import find_windows
from maskwright.text.tokenizer.tokenizer import Tokenizer

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class TextPieces:
    """The tokens of a text, without special tokens around them."""

    ids: list[int]
    names: list[str]
    """The tokens as they are written; an unknown one is the text it stands for."""
    spans: list[tuple[int, int]]
    """The characters of each token, without blanks around them; one that stands for blanks alone has none."""
    continues: Bools
    """Whether a token goes on with the word of the token before it."""

    @cached_property
    def words(self) -> list[range]:
        """The tokens of each word; those of blanks belong to none."""
        bounds = [0, *(place for place in range(1, len(self.ids)) if not self.continues[place]), len(self.ids)]
        return [range(start, stop) for start, stop in pairwise(bounds) if start < stop and self.has_text(start)]

    def has_text(self, place: int) -> bool:
        start, stop = self.spans[place]
        return start < stop


def encode_pieces(tokenizer: Tokenizer, encoder: nn.Module, texts: Sequence[str], name: Name) -> list[TextPieces]:
    refuse_empty(texts, name)
    encodings = tokenizer.encode_spans(texts)
    refuse_unknown([encoding.ids for encoding in encodings], encoder)
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None)
    pieces = []
    for text, encoding in zip(texts, encodings, strict=True):
        ids, names = encoding.ids, encoding.tokens
        spans = [_trim(text, *span) for span in encoding.offsets]
        is_known = [token_id != tokenizer.unk_token_id for token_id in ids]
        if prefix:
            continues = [name.startswith(prefix) and known for name, known in zip(names, is_known, strict=True)]
        else:
            ends = [0, *(stop for _, stop in spans[:-1])]
            rows = zip(spans, ends, is_known, strict=True)
            continues = [_goes_on(text, span, end) and known for span, end, known in rows]
        shown = [
            name if known else text[slice(*span)] for name, span, known in zip(names, spans, is_known, strict=True)
        ]
        pieces.append(TextPieces(ids, shown, spans, np.array(continues, dtype=bool)))
    return pieces


def _trim(text: str, start: int, stop: int) -> tuple[int, int]:
    while start < stop and text[start].isspace():
        start += 1
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    return start, stop


def _goes_on(text: str, span: tuple[int, int], end_before: int) -> bool:
    """Whether no white space parts a token from the one before: all that is known of words where no token says.

    Several tokens may share a character, each with some of its bytes.
    """
    start, stop = span
    return start < stop and start > 0 and (start < end_before or not text[start - 1].isspace())


def find_word_windows(continues: Bools, size: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Overlapping windows of at most `size` tokens, each with the tokens it answers for.

    Windows hand over in the middle of what they share, at the beginning of a word: so each token is answered from the
    window in which it is farther from the edge, and a word from one window alone.
    """
    windows = find_windows(len(continues), size)
    cuts = [0]
    for (start, _), (_, stop) in zip(windows[1:], windows[:-1], strict=True):
        middle = (start + stop) // 2
        word_starts = np.flatnonzero(~continues[start : middle + 1])
        cuts.append(start + int(word_starts[-1]) if len(word_starts) else middle)
    cuts.append(len(continues))
    return list(zip(windows, pairwise(cuts), strict=True))
