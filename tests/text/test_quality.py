from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.sections.data import QualityConfig
from maskwright.text.quality import DocumentCleaner, QualityReport, clean_documents, compute_character_shares


def clean(documents: list[str], **config: Any) -> tuple[list[str], QualityReport]:
    report = QualityReport()
    return list(clean_documents(documents, QualityConfig(**config), report)), report


@given(documents=st.lists(st.text(min_size=1)))
def test_without_settings_everything_is_kept_as_it_is(documents: list[str]) -> None:
    kept, report = clean(documents)
    assert kept == documents
    assert (report.num_seen, report.num_kept, report.num_changed, report.dropped) == (len(kept), len(kept), 0, {})


@pytest.mark.parametrize(
    ("config", "document", "reason"),
    [
        ({"min_chars": 10}, "too short", "under 10 characters"),
        ({"max_chars": 10}, "one longer text", "over 10 characters"),
        ({"min_words": 3}, "two words", "under 3 words"),
        ({"max_words": 1}, "two words", "over 1 words"),
        ({"min_letter_share": 0.5}, "12 - 34 - ab", "under 50% letters"),
        ({"max_symbol_share": 0.2}, "call 555-0199 now", "over 20% digits and symbols"),
        ({"max_repeat_share": 0.3}, "noooooooo way", "over 30% one character"),
        ({"remove_control": True}, "\x00\x01\x7f", "nothing left"),
        ({"unicode": "nfkc"}, "\u3000", "nothing left"),
    ],
)
def test_each_filter_drops_and_counts(config: dict[str, Any], document: str, reason: str) -> None:
    good = "some words"
    if "words" in reason:
        good = "one word less" if "under" in reason else "single"
    kept, report = clean([document, good], **config)
    assert kept == [good]
    assert report.dropped == {reason: 1}


def test_bounds_are_inclusive() -> None:
    assert clean(["abc"], min_chars=3, max_chars=3)[0] == ["abc"]
    assert clean(["a b"], min_words=2, max_words=2)[0] == ["a b"]
    assert clean(["ab12"], min_letter_share=0.5, max_symbol_share=0.5, max_repeat_share=0.25)[0] == ["ab12"]


def test_unicode_forms() -> None:
    assert clean(["e\u0301 \ufb01"], unicode="nfc")[0] == ["\u00e9 \ufb01"]
    kept, report = clean(["e\u0301 \ufb01", "plain"], unicode="nfkc")
    assert kept == ["\u00e9 fi", "plain"]
    assert report.num_changed == 1


def test_control_characters_go_and_blanks_and_joiners_stay() -> None:
    kept, _ = clean(["a\x00b\tc\nd\x0ce\x85f\ufeff \u0646\u200c\u0627"], remove_control=True)
    assert kept == ["ab\tc\nd e f \u0646\u200c\u0627"]


def test_shares_leave_blanks_out_and_count_marks_as_letters() -> None:
    shares = compute_character_shares("aab 1\n+.")
    assert (shares.letters, shares.symbols, shares.most_frequent) == (0.5, 2 / 6, 2 / 6)
    assert compute_character_shares("हिन्दी").letters == 1.0
    assert compute_character_shares("漢字かな").letters == 1.0
    assert compute_character_shares(" \n").letters == 0.0
    assert compute_character_shares("🙂🙂").symbols == 1.0


def test_duplicates_are_dropped_after_cleaning_and_the_first_is_kept() -> None:
    documents = ["e\u0301", "\u00e9", "b", "b"]
    kept, report = clean(documents, unicode="nfc", drop_duplicates=True)
    assert kept == ["\u00e9", "b"]
    assert report.dropped == {"duplicate": 2}


def test_near_duplicates_are_dropped() -> None:
    words = [f"word{number}" for number in range(100)]
    documents = [" ".join(words), " ".join([*words[:-1], "other"]), "a different text"]
    kept, report = clean(documents, drop_near_duplicates=True)
    assert kept == [documents[0], documents[2]]
    assert report.dropped == {"near duplicate": 1}
    assert clean(documents, drop_near_duplicates=True, near_duplicate_similarity=1.0)[0] == documents


def test_a_shared_cleaner_finds_duplicates_across_streams() -> None:
    cleaner = DocumentCleaner(QualityConfig(drop_duplicates=True))
    assert list(cleaner.clean(["a", "b"])) == ["a", "b"]
    assert list(cleaner.clean(["b", "c"])) == ["c"]
    assert cleaner.report.dropped == {"duplicate": 1}


def test_the_report_prints_as_short_lines() -> None:
    _, report = clean(["long enough", "x", "x", "long enough"], min_chars=2, drop_duplicates=True)
    assert str(report).splitlines() == [
        "4 documents, 1 kept (25.0%)",
        "  2 dropped: under 2 characters",
        "  1 dropped: duplicate",
    ]
    assert str(QualityReport()) == "0 documents, 0 kept (0.0%)"


@settings(max_examples=30, deadline=None)
@given(documents=st.lists(st.text(max_size=40), max_size=20))
def test_every_document_is_kept_or_dropped_for_one_reason_and_runs_agree(documents: list[str]) -> None:
    config = {
        "unicode": "nfkc",
        "remove_control": True,
        "min_chars": 2,
        "max_words": 5,
        "min_letter_share": 0.3,
        "max_repeat_share": 0.9,
        "drop_duplicates": True,
        "drop_near_duplicates": True,
    }
    kept, report = clean(documents, **config)
    assert report.num_seen == len(documents) == report.num_kept + report.dropped.total()
    assert report.num_kept == len(kept) == len(set(kept))
    assert clean(documents, **config) == (kept, report)


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(InputError, match=r"min_words \(5\) exceeds max_words \(4\); nothing would be kept"):
        build_config({"quality": {"min_words": 5, "max_words": 4}})
