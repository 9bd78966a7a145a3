from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.batch import PackedBatch
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import build_pairing
from maskwright.data.store import TokenStore
from maskwright.errors import InputError

CLS, SEP, PAD = 1, 2, 0
FIRST_TOKEN = 10
DOCUMENT_LENGTHS = (700, 5, 62, 63, 330)
"""Tokens of documents; rows hold 62 of them between two special tokens."""


def build_loader(**settings: Any) -> PackedLoader:
    """Every token of the corpus is another id, so that an id tells where in the corpus it comes from."""
    offsets = np.cumsum([FIRST_TOKEN, *DOCUMENT_LENGTHS])
    documents = [range(start, stop) for start, stop in pairwise(offsets.tolist())]
    store = TokenStore.from_documents(documents, vocab_size=5000)
    defaults: dict[str, Any] = {"row_length": 64, "rows_per_batch": 8, "seed": 3, "window": 120}
    specials = {"cls_token_id": CLS, "sep_token_id": SEP, "pad_token_id": PAD}
    return PackedLoader(store, **specials, **(defaults | settings))


def read_samples(batches: list[PackedBatch]) -> dict[int, list[int]]:
    """The tokens of each sample, by its number."""
    return {
        number: batch.input_ids[(batch.sample_ids == number) & (batch.input_ids >= FIRST_TOKEN)].tolist()
        for batch in batches
        for number in batch.sample_ids[batch.document_ids > 0].unique().tolist()
    }


def get_epoch(loader: PackedLoader, epoch: int) -> dict[int, list[int]]:
    return read_samples(list(loader.epoch(epoch)))


def test_the_first_epoch_is_cut_as_planned() -> None:
    assert get_epoch(build_loader(recut=True), 0) == get_epoch(build_loader(), 0)


def test_later_epochs_are_cut_elsewhere_each_in_its_own_way() -> None:
    loader = build_loader(recut=True)
    begins = [tuple(sample[0] for _, sample in sorted(get_epoch(loader, epoch).items())) for epoch in range(6)]
    assert len(set(begins)) == 6


def test_samples_keep_their_lengths_and_stay_inside_their_documents() -> None:
    planned = get_epoch(build_loader(), 0)
    document_of = np.repeat(np.arange(len(DOCUMENT_LENGTHS)), DOCUMENT_LENGTHS)
    for epoch in range(1, 20):
        for number, tokens in get_epoch(build_loader(recut=True), epoch).items():
            assert len(tokens) == len(planned[number])
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
            documents = {int(document_of[token - FIRST_TOKEN]) for token in (*tokens, *planned[number])}
            assert len(documents) == 1


def test_every_token_is_read_in_many_surroundings_and_about_equally_often() -> None:
    loader = build_loader(recut=True)
    num_epochs = 200
    counts = np.zeros(sum(DOCUMENT_LENGTHS), dtype=int)
    places: set[int] = set()
    watched = 300  # a token in the middle of the longest document
    for epoch in range(1, num_epochs + 1):
        for tokens in get_epoch(loader, epoch).values():
            counts[np.array(tokens) - FIRST_TOKEN] += 1
            if watched + FIRST_TOKEN in tokens:
                places.add(tokens.index(watched + FIRST_TOKEN))
    assert counts.sum() == num_epochs * sum(DOCUMENT_LENGTHS)
    assert counts.min() > 0.35 * num_epochs
    assert counts.max() < 1.65 * num_epochs
    assert len(places) > 50  # of 62
    middle = counts[100:600]
    assert middle.min() == middle.max() == num_epochs


def test_ranks_share_what_one_process_reads() -> None:
    whole = get_epoch(build_loader(recut=True), 4)
    shares = [get_epoch(build_loader(recut=True, rank=rank, world_size=2), 4) for rank in (0, 1)]
    assert shares[0] | shares[1] == whole


def test_an_epoch_entered_in_the_middle_goes_on_as_it_would_have() -> None:
    loader = build_loader(recut=True, rows_per_batch=4)
    late = list(loader.epoch(3, start_batch=2))
    for one, other in zip(list(loader.epoch(3))[2:], late, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)


def test_held_out_text_is_never_cut_elsewhere() -> None:
    loader = build_loader(recut=True, shuffle=False)
    assert get_epoch(loader, 5) == get_epoch(build_loader(), 0)


def test_pairs_are_refused() -> None:
    with pytest.raises(InputError, match=r"data\.recut is for single texts"):
        build_loader(recut=True, pairing=build_pairing("nsp"))
