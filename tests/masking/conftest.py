"""Packed batches with words, for the maskers that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from maskwright.batch import PackedBatch

CLS, SEP, PAD = 1, 2, 0


@cache
def _list_tokens(sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """(3, tokens) of a document: ids, positions, and 1 where a word begins."""
    starts = [place == 0 for size in sizes for place in range(size)]
    ids = [CLS, *range(10, 10 + len(starts)), SEP]
    return np.array([ids, range(len(ids)), [True, *starts, True]])


@pytest.fixture(scope="session")
def pack_words() -> Callable[..., PackedBatch]:
    """Rows of documents, each document (sample number, sizes of its words); ids are the place in the document + 10."""

    def pack(rows: Sequence[Sequence[tuple[int, Sequence[int]]]], length: int | None = None) -> PackedBatch:
        documents = [[(sample, _list_tokens(tuple(sizes))) for sample, sizes in row] for row in rows]
        width = length or max(sum(tokens.shape[1] for _, tokens in row) for row in documents)
        table = np.full((5, len(rows), width), PAD)
        for number_of_row, row in enumerate(documents):
            begin = 0
            for number, (sample, tokens) in enumerate(row, start=1):
                place = np.s_[number_of_row, begin : begin + tokens.shape[1]]
                table[0][place], table[2][place], table[4][place] = tokens
                table[1][place], table[3][place] = number, sample
                begin += tokens.shape[1]
        ids, numbers, positions, samples, starts = torch.from_numpy(table)
        return PackedBatch(ids, numbers, positions, samples, word_starts=starts.bool())

    return pack
