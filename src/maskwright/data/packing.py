"""Best-fit packing: samples into rows of a fixed length, with as little padding as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pack_rows(lengths: Sequence[int], row_length: int) -> list[list[int]]:
    """Indices of the samples in each row; every sample is placed whole, longest first, where it fits tightest.

    Rows are kept by their free space, and one bit per free space tells which spaces occur, so finding the tightest
    row is a shift and a lowest-set-bit.
    """
    rows: list[list[int]] = []
    rows_by_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    spaces_in_use = 0
    longest_first = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    for sample in longest_first.tolist():
        length = lengths[sample]
        if not 0 < length <= row_length:
            raise ValueError(f"sample {sample} has {length} tokens; rows hold 1 to {row_length}")
        fitting = spaces_in_use >> length
        if fitting:
            space = length + (fitting & -fitting).bit_length() - 1
            row = rows_by_space[space].pop()
            if not rows_by_space[space]:
                spaces_in_use &= ~(1 << space)
        else:
            space, row = row_length, len(rows)
            rows.append([])
        rows[row].append(sample)
        rows_by_space[space - length].append(row)
        spaces_in_use |= 1 << (space - length)
    return rows
