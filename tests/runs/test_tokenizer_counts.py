"""Words counted by tasks: the tokenizer of one pass over the same documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.runs import tokenizer_counts
from maskwright.runs.tokenizer_counts import train_by_counts
from maskwright.sections.data import build_sources
from maskwright.text.sources import read_python_documentation, read_sources
from maskwright.text.tokenizer.counted import is_sampled
from maskwright.text.tokenizer.train import train_tokenizer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small tasks, pieces and merges of few files, so that there are many of each."""
    monkeypatch.setattr(tokenizer_counts, "_TASK_BYTES", 10_000)
    monkeypatch.setattr(tokenizer_counts, "_FILES_AT_ONCE", 3)
    monkeypatch.setattr(tokenizer_counts, "_PIECE_CHARS", 7_500)
    folder = tmp_path / "texts"
    folder.mkdir()
    documents = read_python_documentation()
    for number in range(9):
        lines = [json.dumps({"text": text}) for text in documents[number * 15 : (number + 1) * 15]]
        (folder / f"{number}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def count(folder: Path, **given: Any) -> str:
    sources = build_sources({"path": str(folder), "max_bad_share": 0.02})
    return train_by_counts(sources, vocab_size=2000, **given).backend.to_str()


@pytest.mark.parametrize("sample", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_tasks_give_the_tokenizer_of_their_texts(folder: Path, sample: float) -> None:
    texts = [text for text in read_sources(str(folder)) if is_sampled(text, sample, 5)]
    assert count(folder, sample=sample, seed=5) == train_tokenizer(texts, vocab_size=2000).backend.to_str()


@pytest.mark.slow  # counting and merging are compared above
def test_only_the_most_frequent_words_are_learnt_from_when_asked(folder: Path) -> None:
    said: list[str] = []
    few = count(folder, max_words=300, min_frequency=1, say=said.append)
    (line,) = [line for line in said if "different words" in line]
    assert "learning from the 300 that occur" in line
    assert few != count(folder, min_frequency=1)
    assert count(folder, max_words=10**6) == count(folder)
    words = sorted(tokenizer_counts._keep_frequent(iter([("a", 2), ("b", 5), ("c", 2), ("d", 1)]), 2, said.append))
    assert words == [("a", 2), ("b", 5)]


def test_broken_records_are_judged_over_all_files(folder: Path) -> None:
    with (folder / "3.jsonl").open("a") as file:
        file.write("\nno JSON" * 150)
    with pytest.raises(InputError, match="records are broken"):
        count(folder)


def test_a_sample_without_a_word_and_whole_texts_for_unigram_are_told(folder: Path) -> None:
    with pytest.raises(InputError, match="a sample of 1e-09 of the documents holds no word; take a larger one"):
        count(folder, sample=1e-9)
    with pytest.raises(InputError, match="unigram learns from whole texts"):
        train_by_counts(build_sources(str(folder)), "unigram")
    with pytest.raises(InputError, match="max_words"):
        count(folder, max_words=0)


@pytest.mark.slow
def test_processes_count_the_same(folder: Path) -> None:
    assert count(folder, on="processes", num_workers=2) == count(folder)


class _KilledError(Exception):
    """Stands for a process that ends at once."""


def test_a_call_after_a_killed_one_counts_the_rest(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, kept, said = count(folder), tmp_path / ".kept", []
    count_words, num_counted = tokenizer_counts.count_words, [0]

    def die(*arguments: Any) -> Any:
        num_counted[0] += 1
        if num_counted[0] == most:
            raise _KilledError
        return count_words(*arguments)

    monkeypatch.setattr(tokenizer_counts, "count_words", die)
    most = -1
    assert count(folder, keep_in=kept) == expected
    assert not kept.exists()
    num_all, num_counted[0] = num_counted[0], 0
    most = half = num_all // 2
    with pytest.raises(_KilledError):
        count(folder, keep_in=kept)
    most = -1
    assert count(folder, keep_in=kept, say=said.append) == expected
    assert num_all <= num_counted[0] < half + num_all
    assert "going on after" in said[0]
    assert not kept.exists()


def test_a_killed_merge_goes_on_and_other_texts_or_settings_begin_anew(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, kept, said = count(folder), tmp_path / ".kept", []
    with monkeypatch.context() as patch:

        def die(files: Any) -> Any:
            raise _KilledError

        patch.setattr(tokenizer_counts, "_merge", die)
        with pytest.raises(_KilledError):
            count(folder, keep_in=kept)
    assert count(folder, keep_in=kept, say=said.append) == expected
    (first, *_) = said
    assert first.startswith("going on after")
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_counts, "train_on_counts", die)
        patch.setattr(tokenizer_counts, "_merge", die)
        with pytest.raises(_KilledError):
            count(folder, keep_in=kept)
    said.clear()
    sampled = count(folder, keep_in=kept, sample=0.4, say=said.append)
    assert not said[0].startswith("going on")
    assert sampled == count(folder, sample=0.4)
