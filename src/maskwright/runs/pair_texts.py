"""Pairs of texts to pairs of tokens that fit rows, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.data.given_pairs import PairStore, Segments, find_room
from maskwright.data.shards import Shards
from maskwright.runs.texts import Say
from maskwright.text.encoding import encode_corpus
from maskwright.text.tokenizer import Tokenizer


def encode_pairs(tokenizer: Tokenizer, texts: Sequence[str], row_length: int) -> PairStore:
    """The pairs whose first and second texts come by turns; words are known."""
    encoded = [encode_corpus(side, tokenizer) for side in (texts[::2], texts[1::2])]
    firsts, seconds = (Segments(side.ids, side.lengths, side.word_starts) for side in encoded)
    return PairStore.from_segments(firsts, seconds, tokenizer.vocab_size, find_room(row_length))


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
