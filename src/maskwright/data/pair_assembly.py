"""Lay pairs of segments out in rows: [CLS] a [SEP] b [SEP], or [CLS] a [SEP] for what is not cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.data.assembly import Array, BatchAssembler, SpecialIds
from maskwright.data.pairs import PairDraws, Pairing
from maskwright.data.rows import NUM_SPECIALS, RowPlan
from maskwright.data.store import TokenStore


class PairAssembler(BatchAssembler):
    """Adds token types (0 for [CLS] a [SEP], 1 for b [SEP]) and a label at the [CLS] of each pair that has one."""

    def __init__(
        self,
        num_rows: int,
        row_length: int,
        specials: SpecialIds,
        with_words: bool = False,
        *,
        pairing: Pairing,
        draws: PairDraws,
    ) -> None:
        super().__init__(num_rows, row_length, specials, with_words)
        self._pairing = pairing
        self._draws = draws
        self._token_types = np.zeros(num_rows * row_length, dtype=np.int64)
        self._pair_labels = np.full(num_rows * row_length, IGNORED_LABEL, dtype=np.int64)

    def add(
        self, rows: Array, counts: Array, store: TokenStore, plan: RowPlan, samples: Array, sample_ids: Array
    ) -> None:
        pairs = self._pairing.pair(store, plan, samples, sample_ids, self._draws)
        sizes = pairs.first_lengths + NUM_SPECIALS
        sizes += np.where(pairs.second_lengths > 0, pairs.second_lengths + 1, 0)
        target, positions, is_last = self.lay_out(rows, counts, sizes, sample_ids)

        middle = pairs.first_lengths + 1  # the position of the first [SEP]
        from_middle = positions - np.repeat(middle, sizes)
        is_second = from_middle > 0
        first_source = np.repeat(pairs.first_starts - 1, sizes) + positions
        second_source = np.repeat(pairs.second_starts - 1, sizes) + from_middle
        source = np.where(is_second, second_source, first_source)
        is_first = positions == 0
        self._write_stored(target, store, source, is_first, is_separator=is_last | (from_middle == 0))
        self._token_types[target] = is_second
        self._pair_labels[target[is_first]] = pairs.labels

    def finish(self) -> PackedBatch:
        return replace(
            super().finish(),
            token_type_ids=torch.from_numpy(self._token_types.reshape(self._shape)),
            pair_labels=torch.from_numpy(self._pair_labels.reshape(self._shape)),
        )
