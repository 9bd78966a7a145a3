"""A search for duplicates by tasks: the verdicts of a single pass, for any limit of memory and whoever does it."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.errors import InputError, RunError
from maskwright.runs import duplicate_search
from maskwright.runs.duplicate_search import DuplicateSearch
from maskwright.runs.duplicate_tasks import (
    MatchJob,
    Runs,
    cut_keys,
    read_entries,
    write_entries,
)
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions, plan_tasks
from maskwright.runs.task_runners import ThisProcess
from maskwright.sections.data import QualityConfig, build_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer

WORDS = [f"{first}{second}" for first in "abcdefghij" for second in ("un", "el", "ora", "isk", "ent")]
BOTH = QualityConfig(min_words=6, drop_duplicates=True, drop_near_duplicates=True)
SMALL = 1 << 16


def make_texts(seed: int, num_texts: int) -> list[str]:
    """Of which some are copies of one before, some nearly, and some too short."""
    choice = random.Random(seed)
    texts: list[str] = []
    for _ in range(num_texts):
        kind = choice.random()
        if texts and kind < 0.2:
            texts.append(choice.choice(texts))
        elif texts and kind < 0.5:
            words = choice.choice(texts).split()
            words[choice.randrange(len(words))] = "changed"
            texts.append(" ".join(words))
        else:
            texts.append(" ".join(choice.choices(WORDS, k=choice.randint(4, 50))))
    return texts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of one seed, so that copies are in other files too."""
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = make_texts(0, 260)
    random.Random(1).shuffle(texts)
    for number, (start, end) in enumerate(((0, 90), (90, 95), (95, 99), (99, 99), (99, 180), (180, 260))):
        (folder / f"{number}.txt").write_text("".join(f"{text}\n" for text in texts[start:end]), encoding="utf-8")
    return folder


def run(folder: Path, tokenizer: Tokenizer, out: Path, quality: QualityConfig = BOTH, **given: Any) -> Any:
    options = PrepareOptions(validation_share=0.2, part_chars=1500, quality=quality)
    return prepare(build_sources(str(folder)), tokenizer, out, options, **{"num_workers": 2, **given})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "quality",
    [
        BOTH,
        QualityConfig(drop_duplicates=True),
        QualityConfig(drop_near_duplicates=True, near_duplicate_similarity=0.4),
    ],
)
def test_tasks_keep_the_documents_of_a_single_pass(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, quality: QualityConfig
) -> None:
    manifest = run(folder, tokenizer, tmp_path / "one", quality)
    assert min(manifest["dropped_documents"].values()) > 10
    said: list[str] = []
    for memory_bytes in (2 * SMALL, 1 << 30):
        out = tmp_path / str(memory_bytes)
        run(folder, tokenizer, out, quality, memory_bytes=memory_bytes, say=said.append)
        assert contents(out) == contents(tmp_path / "one")
    num_dropped = sum(count for reason, count in manifest["dropped_documents"].items() if "duplicate" in reason)
    assert [line for line in said if line.endswith("documents") and f"duplicates: {num_dropped}" in line]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["131072", "1073741824", "one", "texts"])


def test_texts_of_no_document_and_of_one_are_prepared(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "one.txt").write_text("a single document of several words\n", encoding="utf-8")
    assert run(tmp_path / "one.txt", tokenizer, tmp_path / "out", memory_bytes=SMALL)["num_documents"] == 1
    with pytest.raises(InputError, match="no document is left"):
        run(
            tmp_path / "one.txt",
            tokenizer,
            tmp_path / "out2",
            BOTH.model_copy(update={"min_words": 99}),
            memory_bytes=SMALL,
        )


def test_a_killed_search_goes_on(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tokenizer, tmp_path / "one")
    done: list[str] = []
    stops = [3, 9, 14]
    original = duplicate_search.write_text

    def write_some(file: Path, text: str) -> None:
        if len(done) in stops:
            stops.remove(len(done))
            raise KeyboardInterrupt
        done.append(f"{file.parent.name}/{file.name}")
        original(file, text)

    monkeypatch.setattr(duplicate_search, "write_text", write_some)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(folder, tokenizer, tmp_path / "out", memory_bytes=SMALL)
    run(folder, tokenizer, tmp_path / "out", memory_bytes=SMALL)
    assert len(done) == len(set(done)) > 14  # no task was done twice
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


def test_damaged_files_between_the_rounds_are_told(folder: Path, tmp_path: Path) -> None:
    def search(say: Callable[[str], None]) -> None:
        tasks = plan_tasks(build_sources(str(folder)), 1500)
        DuplicateSearch(tmp_path / "work", ThisProcess(1), say, SMALL).run(build_sources(str(folder)), BOTH, tasks)

    for suffix, act in (("near", "reading"), ("signatures", "comparing")):

        def damage(line: str, suffix: str = suffix, act: str = act) -> None:
            if line.startswith(f"duplicates: {act}"):
                for file in (tmp_path / "work").rglob(f"*.{suffix}"):
                    file.write_bytes(file.read_bytes()[:-3])

        with pytest.raises(InputError, match=f"{suffix} is missing or damaged; delete .*duplicates, and"):
            search(damage)
        shutil.rmtree(tmp_path / "work")


def test_sources_that_change_in_between_are_told(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    def change(line: str) -> None:
        if line.endswith("documents"):
            (folder / "5.txt").write_text("\n".join(make_texts(5, 30)), encoding="utf-8")

    with pytest.raises(RunError, match="the sources changed while they were prepared"):
        run(folder, tokenizer, tmp_path / "out", memory_bytes=SMALL, say=change)


def test_limits_of_memory_that_cannot_be_are_refused(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is 1,000 bytes; give at least 65,536"):
        run(folder, tokenizer, tmp_path / "out", memory_bytes=1000)
    with pytest.raises(InputError, match="a limit of memory is for the search for duplicates"):
        run(folder, tokenizer, tmp_path / "out", QualityConfig(), memory_bytes=SMALL)


def test_a_range_of_a_file_is_what_lies_in_it(tmp_path: Path) -> None:
    random_numbers = np.random.default_rng(0)
    keys = random_numbers.integers(0, 50, 300).astype(np.uint64) << np.uint64(58)
    write_entries(tmp_path / "file", keys, np.arange(300, dtype=np.uint64))
    ranges = cut_keys("near", 300, 192 * 40)
    found = [read_entries(tmp_path / "file", task.first, task.end) for task in ranges]
    assert len(ranges) == 8
    assert np.concatenate(found)["key"].tolist() == sorted(keys.tolist())
    assert all(
        task.first <= int(key) < task.end for task, some in zip(ranges, found, strict=True) for key in some["key"]
    )


@pytest.mark.parametrize("num_different", [3, 40_000])
def test_matching_stays_within_its_memory_also_when_most_documents_are_alike(
    tmp_path: Path, num_different: int
) -> None:
    """A key that most documents have cannot be split between ranges; it comes in pieces."""
    memory_bytes, num_runs, per_run = 1 << 21, 20, 5000
    random_numbers = np.random.default_rng(0)
    values = random_numbers.integers(0, 1 << 64, num_different, dtype=np.uint64)
    every = random_numbers.choice(values, (num_runs, per_run))
    names = [f"000.{number:05d}" for number in range(num_runs)]
    for number, (name, keys) in enumerate(zip(names, every, strict=True)):
        documents = np.arange(number * per_run, (number + 1) * per_run, dtype=np.uint64)
        write_entries(tmp_path / "duplicates" / "signed" / f"{name}.near", keys, documents)
    runs = Runs(tuple(names), tuple(range(0, num_runs * per_run, per_run)), (per_run,) * num_runs)
    job = MatchJob(runs, memory_bytes, "matched")
    firsts = {int(key): place for place, key in reversed(list(enumerate(every.ravel())))}
    expected = {(place, firsts[int(key)]) for place, key in enumerate(every.ravel()) if firsts[int(key)] != place}
    found: list[tuple[int, int]] = []
    tracemalloc.start()
    try:
        with job.open(1) as do:
            for task in cut_keys("near", num_runs * per_run, memory_bytes):
                tracemalloc.reset_peak()
                list(do(task, job.give(task, tmp_path), tmp_path))
                assert tracemalloc.get_traced_memory()[1] < memory_bytes
    finally:
        tracemalloc.stop()
    for file in sorted((tmp_path / "duplicates" / "matched").iterdir()):
        found += [(int(one), int(other)) for one, other in np.fromfile(file, dtype=[("a", "<u8"), ("b", "<u8")])]
    assert len(found) == len(expected)
    assert set(found) == expected


@pytest.mark.slow
def test_processes_find_the_same_duplicates(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    run(folder, tokenizer, tmp_path / "one")
    run(folder, tokenizer, tmp_path / "others", on="processes", num_workers=3, memory_bytes=2 * SMALL)
    assert contents(tmp_path / "others") == contents(tmp_path / "one")
