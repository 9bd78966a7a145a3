"""Checks of the text: unknown tokens, and how well documents fill the rows."""

from __future__ import annotations

import numpy as np

from maskwright.data.given_pairs import PairStore
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.runs.doctor.findings import Finding
from maskwright.runs.inputs import TrainingData
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import EVALUATION_RATIO

_SAMPLED_TOKENS = 100_000
_SAMPLED_SHARDS = 16
_MOST_UNKNOWN = 0.01
_MOST_PADDING = 0.1
_LEAST_MASKED = 1_000
"""Masked tokens of an evaluation; an accuracy of 50% is then known to about 3 percentage points (95%)."""


def check_text(data: TrainingData) -> list[Finding]:
    return [
        check_tokenizer(data.tokenizer, data.validation),
        check_documents(data.train),
        check_rows(data.train),
        check_held_out(data.validation),
    ]


def check_tokenizer(tokenizer: Tokenizer, held_out: PackedLoader) -> Finding:
    """Unknown tokens, and tokens to a word, in a sample of the held-out text."""
    documents = _sample_documents(held_out)
    num_tokens = sum(len(ids) for ids in documents)
    num_words = sum(len(tokenizer.decode(ids, skip_special_tokens=False).split()) for ids in documents)
    unknown_share = sum(ids.count(tokenizer.unk_token_id) for ids in documents) / max(1, num_tokens)
    text = (
        f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens; of held-out text {unknown_share:.2%} is unknown to it,"
        f" {num_tokens / max(1, num_words):.2f} tokens to a word"
    )
    advice = (
        "use a tokenizer made for this language and script, train one on this text (leave tokenizer.path unset) or take"
        " tokenizer.type=byte_level_bpe, which knows every character"
    )
    return Finding.judge("tokenizer", text, advice if unknown_share > _MOST_UNKNOWN else None)


def _sample_documents(loader: PackedLoader) -> list[list[int]]:
    """The first documents of each chosen shard, so that all sources are included."""
    shards = _choose_shards(loader)
    documents = []
    for shard in shards:
        store = loader.shards.store(shard)
        num_documents = int(np.searchsorted(store.offsets, _SAMPLED_TOKENS // len(shards)))
        documents += [_document(store, index) for index in range(min(max(1, num_documents), store.num_documents))]
    return documents


def _document(store: TokenStore, index: int) -> list[int]:
    start, end = store.offsets[index], store.offsets[index + 1]
    ids: list[int] = store.ids[start : min(end, start + _SAMPLED_TOKENS)].tolist()
    return ids


def _choose_shards(loader: PackedLoader) -> list[int]:
    """An even choice of the shards, as a corpus may be larger than memory."""
    chosen: list[int] = np.unique(np.linspace(0, loader.shards.num_shards - 1, _SAMPLED_SHARDS).astype(int)).tolist()
    return chosen


def check_documents(train: PackedLoader) -> Finding:
    """How many documents are longer than a row; they are split, never cut off, unless they are pairs."""
    stores = [train.shards.store(shard) for shard in _choose_shards(train)]
    lengths = np.concatenate([np.diff(store.offsets) for store in stores])
    num_cut = sum(store.num_cut for store in stores if isinstance(store, PairStore))
    room = train.row_length - train.num_specials
    pieces = -(-lengths[lengths > room] // room)
    text = f"{train.shards.num_documents:,} documents with {train.shards.num_tokens:,} tokens; "
    if len(pieces):
        text += (
            f"{len(pieces) / len(lengths):.1%} are longer than a row of {train.row_length} and are split, into"
            f" {pieces.mean():.1f} pieces on average: nothing is cut off"
        )
    elif num_cut:
        text += f"{num_cut / len(lengths):.1%} are pairs longer than a row of {train.row_length} and lost an end"
    else:
        text += f"all fit a row of {train.row_length}"
    return Finding("data", "OK", text)


def check_rows(train: PackedLoader) -> Finding:
    padding_share = 1.0 - train.utilisation()
    text = (
        f"{padding_share:.1%} of row places are padding, {len(train):,} batches of {train.rows_per_batch} rows an epoch"
    )
    advice = "set a larger data.max_length or data.packing_window, so that more documents share a row"
    return Finding.judge("rows", text, advice if padding_share > _MOST_PADDING else None)


def check_held_out(held_out: PackedLoader) -> Finding:
    num_masked = round(EVALUATION_RATIO * held_out.shards.num_tokens)
    text = f"{held_out.shards.num_documents:,} documents, about {num_masked:,} masked tokens an evaluation"
    advice = "hold out more: raise data.validation_share or give data.validation; figures of so few are mostly noise"
    return Finding.judge("held out", text, advice if num_masked < _LEAST_MASKED else None)
