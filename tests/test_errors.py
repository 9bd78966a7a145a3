"""Sentences of any length become ones that a terminal can show."""

from __future__ import annotations

import pytest

from maskwright.errors import InputError, cut_message


@pytest.mark.parametrize("num_chars", [10, 100_000])
def test_a_long_value_leaves_the_file_and_the_advice(num_chars: int) -> None:
    message = str(InputError(f"a.tsv:2 has the label '{'x' * num_chars}'; expected a or b"))
    assert message.startswith("a.tsv:2 has the label")
    assert message.endswith("expected a or b")
    assert len(message) < 1300
    assert ("[...]" in message) == (num_chars > 1000)


def test_a_long_reason_ends_at_a_word() -> None:
    assert cut_message("no \n such  host") == "no such host"
    assert cut_message("no such host", 8) == "no such ..."
    assert cut_message("no such host", 7) == "no such ..."
    assert cut_message("no such host", 6) == "no ..."
    assert cut_message("x" * 9, 4) == "xxxx ..."
