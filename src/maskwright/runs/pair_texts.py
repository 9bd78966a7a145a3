"""Pairs of texts to pairs of tokens that fit rows, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

import numpy as np

from maskwright.data.given_pairs import PairStore, Segments, find_room
from maskwright.data.shards import Shards
from maskwright.data.store import StoreBuilder
from maskwright.runs.texts import Say
from maskwright.text.encoding import encode_texts
from maskwright.text.tokenizer import CHUNK_CHARS, Tokenizer, group_texts
from maskwright.text.words import build_boundaries


def encode_pairs(
    tokenizer: Tokenizer, texts: Iterable[str], row_length: int, file: IO[bytes] | None = None
) -> PairStore:
    """The pairs whose first and second texts come by turns; words are known. With a `file`, the ids are there."""
    boundaries = build_boundaries(tokenizer)
    builder = StoreBuilder(tokenizer.vocab_size, with_words=True, file=file)
    first_lengths = [np.empty(0, np.int64)]
    num_cut = num_empty = 0
    for group in group_texts(texts, CHUNK_CHARS, multiple=2):
        encoded = [encode_texts(side, tokenizer, boundaries) for side in (group[::2], group[1::2])]
        firsts, seconds = (Segments(side.ids, side.lengths, side.word_starts) for side in encoded)
        part = PairStore.from_segments(firsts, seconds, tokenizer.vocab_size, find_room(row_length))
        assert part.word_bits is not None
        words = np.unpackbits(part.word_bits, count=part.num_tokens).astype(bool)
        builder.add(part.ids, np.diff(part.offsets), words)
        first_lengths.append(part.first_lengths)
        num_cut, num_empty = num_cut + part.num_cut, num_empty + part.num_empty
    store = builder.build()
    return PairStore(
        store.ids,
        store.offsets,
        store.word_bits,
        first_lengths=np.concatenate(first_lengths),
        num_cut=num_cut,
        num_empty=num_empty,
    )


def warn_of_losses(corpora: Sequence[Shards], row_length: int, warn: Say) -> None:
    """Say how many pairs were cut, and how many left out."""
    stores = [shards.store(shard) for shards in corpora for shard in range(shards.num_shards)]
    pairs = [store for store in stores if isinstance(store, PairStore)]
    num_cut, num_empty = sum(store.num_cut for store in pairs), sum(store.num_empty for store in pairs)
    num_pairs = sum(store.num_documents for store in pairs) + num_empty
    if num_cut:
        warn(
            f"{num_cut:,} of {num_pairs:,} pairs have more tokens than a row of {row_length} has room for; the longer"
            " text of each lost its end. Raise data.max_length if the ends matter"
        )
    if num_empty:
        warn(
            f"{num_empty:,} of {num_pairs:,} pairs were left out, as the tokenizer finds no token in one of their"
            " texts. Check the tokenizer if they matter"
        )
