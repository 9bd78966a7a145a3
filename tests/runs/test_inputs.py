from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.errors import InputError
from maskwright.runs.given import name_sources
from maskwright.runs.texts import split_documents

texts_lists = st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=40).filter(lambda texts: len({*texts}) > 1)


@given(texts_lists, st.floats(0.001, 0.999))
def test_every_document_is_on_exactly_one_side_and_neither_side_is_empty(texts: list[str], share: float) -> None:
    split = split_documents([texts], share)
    (train,) = split.train
    assert train
    (held_out,) = split.held_out
    assert held_out
    assert sorted(train + held_out) == sorted(texts)
    assert not {*train} & {*held_out}


@given(texts_lists, st.randoms(use_true_random=False))
def test_the_side_does_not_depend_on_the_order(texts: list[str], random: st.DataObject) -> None:
    shuffled = list(texts)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {*split_documents([texts], 0.3).train[0]} == {*split_documents([shuffled], 0.3).train[0]}


def test_the_share_is_about_what_was_asked_for() -> None:
    split = split_documents([[f"document {number}" for number in range(4000)]], 0.1)
    assert 330 <= len(split.held_out[0]) <= 470


@pytest.mark.parametrize("texts", [["one"], ["same", "same", "same"]])
def test_a_single_text_cannot_be_split(texts: list[str]) -> None:
    with pytest.raises(InputError, match=r"too few to hold some out; give data\.validation"):
        split_documents([texts], 0.1)


def test_records_in_memory_that_no_file_can_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a record of memory:texts .*ud800.* is not UTF-8"):
        name_sources([{"text": "the \ud800 cat"}], tmp_path)
