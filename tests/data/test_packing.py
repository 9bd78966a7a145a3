from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.batch import PADDING_DOCUMENT
from maskwright.data.assembly import pack_rows, pack_samples

ROW_LENGTH = 24
lengths_lists = st.lists(st.integers(1, ROW_LENGTH), max_size=80)


@given(lengths_lists)
def test_every_sample_is_placed_exactly_once(lengths: list[int]) -> None:
    rows = pack_rows(lengths, ROW_LENGTH)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))


@given(lengths_lists)
def test_no_row_is_empty_or_over_its_length(lengths: list[int]) -> None:
    rows = pack_rows(lengths, ROW_LENGTH)
    assert all(0 < sum(lengths[sample] for sample in row) <= ROW_LENGTH for row in rows)


@given(lengths_lists)
def test_rows_are_between_the_least_possible_and_one_per_sample(lengths: list[int]) -> None:
    assert -(-sum(lengths) // ROW_LENGTH) <= len(pack_rows(lengths, ROW_LENGTH)) <= len(lengths)


@given(lengths_lists)
def test_no_two_rows_could_be_one(lengths: list[int]) -> None:
    fill = sorted(sum(lengths[sample] for sample in row) for row in pack_rows(lengths, ROW_LENGTH))
    assert len(fill) < 2 or fill[0] + fill[1] > ROW_LENGTH


def test_a_sample_goes_where_it_fits_tightest() -> None:
    assert pack_rows([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]


def test_long_samples_are_placed_before_short_ones() -> None:
    assert len(pack_rows([3, 3, 7, 7], 10)) == 2


@pytest.mark.parametrize("length", [0, ROW_LENGTH + 1])
def test_a_sample_that_no_row_can_hold_is_an_error(length: int) -> None:
    with pytest.raises(ValueError, match=rf"sample 1 has {length} tokens; rows hold 1 to {ROW_LENGTH}"):
        pack_rows([3, length], ROW_LENGTH)


def test_samples_of_which_no_two_fit_have_a_row_each_longest_first() -> None:
    assert pack_rows([6, 10, 6, 7], 10) == [[1], [3], [0], [2]]


@given(st.lists(st.integers(1, ROW_LENGTH), min_size=1, max_size=40), st.booleans())
def test_packed_samples_are_found_where_they_are_said_to_be(lengths: list[int], has_segments: bool) -> None:
    sizes = np.asarray(lengths)
    ids = np.arange(1, sizes.sum() + 1)
    packed = pack_samples(ids, sizes, ROW_LENGTH, pad_token_id=0, token_type_ids=ids % 2 if has_segments else None)
    batch = packed.batch
    assert batch.input_ids.flatten()[packed.places].tolist() == ids.tolist()
    assert batch.num_tokens() == len(ids)
    assert (batch.input_ids[batch.document_ids == PADDING_DOCUMENT] == 0).all()
    positions = np.concatenate([np.arange(length) for length in lengths])
    assert batch.positions.flatten()[packed.places].tolist() == positions.tolist()
    owners = np.repeat(np.arange(len(lengths)), sizes)
    assert (batch.document_ids.flatten()[packed.places] - 1).tolist() == packed.documents[owners].tolist()
    assert (packed.places // ROW_LENGTH).tolist() == packed.rows[owners].tolist()
    assert packed.num_documents == int(packed.documents.max()) + 1
    if has_segments:
        assert batch.token_type_ids is not None
        assert batch.token_type_ids.flatten()[packed.places].tolist() == (ids % 2).tolist()
    else:
        assert batch.token_type_ids is None
