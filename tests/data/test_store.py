from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.data import store as store_module
from maskwright.data.store import SampleIndex, StoreBuilder, TokenStore

documents_lists = st.lists(st.lists(st.integers(0, 99), max_size=30), max_size=20)


@given(documents_lists)
def test_a_store_keeps_every_document_that_has_tokens(documents: list[list[int]]) -> None:
    store = TokenStore.from_documents(documents, vocab_size=100)
    kept = [store.ids[begin:end].tolist() for begin, end in zip(store.offsets[:-1], store.offsets[1:], strict=True)]
    assert kept == [document for document in documents if document]
    assert store.num_documents == len(kept)
    assert store.num_tokens == sum(map(len, documents))


@given(documents_lists)
def test_counts_are_how_often_each_id_occurs(documents: list[list[int]]) -> None:
    counts = TokenStore.from_documents(documents, vocab_size=100).count_ids(100)
    flat = [token_id for document in documents for token_id in document]
    assert counts.tolist() == [flat.count(token_id) for token_id in range(100)]


def test_ids_beyond_sixteen_bits_are_kept() -> None:
    store = TokenStore.from_documents([[65_535, 65_536, 200_000]], vocab_size=200_001)
    assert store.ids.tolist() == [65_535, 65_536, 200_000]


@given(documents_lists)
def test_a_store_of_arrays_is_that_of_documents_with_words(documents: list[list[int]]) -> None:
    ids = np.asarray([token_id for document in documents for token_id in document], dtype=np.uint32)
    store = TokenStore.from_arrays(ids, np.asarray(list(map(len, documents)), dtype=np.int64), ids % 3 == 0, 100)
    plain = TokenStore.from_documents(documents, vocab_size=100)
    assert (store.ids.tolist(), store.offsets.tolist()) == (plain.ids.tolist(), plain.offsets.tolist())
    assert (store.ids.dtype, plain.word_bits) == (plain.ids.dtype, None)
    assert store.word_bits is not None
    assert np.unpackbits(store.word_bits, count=len(ids)).tolist() == (ids % 3 == 0).tolist()


@given(st.lists(documents_lists, max_size=4), st.booleans(), st.booleans())
def test_a_store_built_part_by_part_is_that_of_all_of_them(
    parts: list[list[list[int]]], has_words: bool, has_file: bool
) -> None:
    with tempfile.TemporaryFile() as file:
        builder = StoreBuilder(100, has_words, file if has_file else None)
        arrays = []
        for documents in parts:
            ids = np.asarray([token_id for document in documents for token_id in document], dtype=np.uint32)
            arrays.append((ids, np.asarray(list(map(len, documents)), dtype=np.int64), ids % 3 == 0))
            builder.add(*arrays[-1][:2], arrays[-1][2] if has_words else None)
        built = builder.build()
    empty = (np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, bool))
    whole = TokenStore.from_arrays(*map(np.concatenate, zip(empty, *arrays, strict=True)), 100)
    assert (built.ids.tolist(), built.offsets.tolist()) == (whole.ids.tolist(), whole.offsets.tolist())
    assert built.ids.dtype == whole.ids.dtype
    assert isinstance(built.ids, np.memmap) == (has_file and built.num_tokens > 0)
    if has_words:
        assert built.word_bits.tolist() == whole.word_bits.tolist()
    else:
        assert built.word_bits is None


def test_counting_in_parts_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_COUNTED_IDS", 7)
    ids = [number * number % 11 for number in range(100)] + [19]
    counts = TokenStore.from_documents([ids], vocab_size=20).count_ids(15)
    assert counts.tolist() == [ids.count(number) for number in range(20)]


@given(documents_lists, st.integers(1, 12))
def test_samples_in_order_are_the_corpus_with_nothing_lost(documents: list[list[int]], max_tokens: int) -> None:
    store = TokenStore.from_documents(documents, vocab_size=100)
    samples = SampleIndex.build(store, max_tokens)
    spans = [store.ids[start : start + length] for start, length in zip(samples.starts, samples.lengths, strict=True)]
    assert np.concatenate([*spans, store.ids[:0]]).tolist() == store.ids.tolist()


@given(documents_lists, st.integers(1, 12))
def test_samples_fit_and_stay_within_one_document(documents: list[list[int]], max_tokens: int) -> None:
    store = TokenStore.from_documents(documents, vocab_size=100)
    samples = SampleIndex.build(store, max_tokens)
    assert all(1 <= length <= max_tokens for length in samples.lengths)
    assert len(samples) == sum(-(-len(document) // max_tokens) for document in documents)
    ends = set((samples.starts + samples.lengths).tolist())
    assert set(store.offsets[1:].tolist()) <= ends
