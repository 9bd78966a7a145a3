"""Packed batches with words, for the maskers that need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from maskwright.batch import PackedBatch

CLS, SEP, PAD = 1, 2, 0


@pytest.fixture(scope="session")
def pack_words() -> Callable[..., PackedBatch]:
    """Rows of documents, each document (sample number, sizes of its words); ids are the place in the document + 10."""

    def pack(rows: Sequence[Sequence[tuple[int, Sequence[int]]]], length: int | None = None) -> PackedBatch:
        columns: list[list[list[int]]] = []
        for documents in rows:
            row: list[list[int]] = []
            for number, (sample, sizes) in enumerate(documents, start=1):
                starts = [place == 0 for size in sizes for place in range(size)]
                ids = [CLS, *range(10, 10 + len(starts)), SEP]
                for position, (token_id, start) in enumerate(zip(ids, [True, *starts, True], strict=True)):
                    row.append([token_id, number, position, sample, int(start)])
            columns.append(row)
        width = length or max(map(len, columns))
        for row in columns:
            row += [[PAD, 0, 0, 0, 0]] * (width - len(row))
        ids, documents_, positions, samples, starts_ = torch.tensor(columns).permute(2, 0, 1)
        return PackedBatch(ids, documents_, positions, samples, word_starts=starts_.bool())

    return pack
