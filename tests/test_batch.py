"""Packed and padded layouts hold the same tokens."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.batch import PackedBatch, as_packed, from_padded, to_padded
from maskwright.errors import InputError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(1, 6), min_size=0, max_size=4), min_size=1, max_size=4))
def test_padded_view_of_packed_rows_holds_each_document_once(rows):
    """`rows` are the lengths of the documents in each row."""
    length = max([sum(row) for row in rows] + [1]) + 2
    fields = torch.zeros(4, len(rows), length, dtype=torch.long)
    expected, token = [], 10
    for row, lengths in enumerate(rows):
        begin = 0
        for document, size in enumerate(lengths, start=1):
            ids = torch.arange(token, token + size)
            token += size
            place = slice(begin, begin + size)
            fields[0, row, place], fields[1, row, place] = ids, document
            fields[2, row, place], fields[3, row, place] = torch.arange(size), token
            expected.append(ids.tolist())
            begin += size
    batch = PackedBatch(*fields)
    inputs, index = to_padded(batch)
    found = [ids[mask.bool()].tolist() for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)]
    assert [ids for ids in found if ids] == expected
    back = inputs["input_ids"].flatten()[index].view_as(batch.input_ids)
    assert torch.equal(back[~batch.is_padding], batch.input_ids[~batch.is_padding])
    assert batch.num_tokens() == sum(map(sum, rows))


def test_a_padded_sample_is_known_by_its_content_whatever_its_padding():
    short = from_padded(torch.tensor([[5, 6, 7]]))
    long = from_padded(
        torch.tensor([[5, 6, 7, 0, 0], [8, 9, 0, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
    )
    assert short.sample_ids[0, 0] == long.sample_ids[0, 0]
    assert long.sample_ids[0, 0] != long.sample_ids[1, 0]
    swapped = from_padded(torch.tensor([[6, 5, 7]]))
    assert swapped.sample_ids[0, 0] != short.sample_ids[0, 0]


def test_dictionary_tensor_and_packed_batch_are_accepted():
    ids = torch.tensor([[5, 6, 0]])
    mask = torch.tensor([[1, 1, 0]])
    packed = as_packed({"input_ids": ids, "attention_mask": mask, "token_type_ids": mask})
    assert packed.document_ids.tolist() == [[1, 1, 0]]
    assert packed.token_type_ids is mask
    assert as_packed(packed) is packed
    assert as_packed(ids).num_tokens() == 3


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"ids": torch.ones(1, 2)}, "needs the key 'input_ids', found \\['ids'\\]"),
        ([1, 2], "found list"),
        (torch.ones(3, dtype=torch.long), r"shape \(3,\); expected \(batch, length\)"),
        ({"input_ids": torch.ones(1, 2).long(), "attention_mask": torch.ones(1, 3)}, "attention_mask has shape"),
    ],
)
def test_wrong_batches_are_named(batch, message):
    with pytest.raises(InputError, match=message):
        as_packed(batch)


def test_fields_of_different_shapes_are_refused():
    ids = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(InputError, match="positions has shape"):
        PackedBatch(ids, ids, ids[:, :2], ids)


def test_filling_up_adds_rows_of_padding_that_ask_nothing():
    batch = from_padded(torch.tensor([[5, 6, 7], [8, 9, 10]]))
    batch = replace(batch, pair_labels=torch.tensor([[1, -100, -100], [0, -100, -100]]))
    filled = batch.fill_up(4)
    assert filled.num_rows == 4
    assert filled.num_tokens() == batch.num_tokens()
    assert filled.pair_labels is not None
    assert (filled.pair_labels[2:] == -100).all()
    for field in ("input_ids", "document_ids", "positions", "sample_ids", "pair_labels"):
        assert torch.equal(getattr(filled.rows(0, 2), field), getattr(batch, field))
    assert batch.fill_up(1).num_rows == 2
