"""A killed prediction goes on with the same command, and its file is that of an uninterrupted run, byte by byte."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prestarted import Child, Prestarted

import maskwright as mw
from maskwright.errors import RunInterruptedError
from maskwright.inference import kept_answers
from maskwright.inference.pipeline import Pipeline
from maskwright.runs import predict
from maskwright.text.tokenizer.tokenizer import load_tokenizer

Command = Callable[..., Any]
Start = Callable[..., Child]
PART = (20, 1 << 18)
BLOCK = 8
NUM_ROWS = 107


@pytest.fixture(autouse=True)
def _parts_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_CPU_PART", PART)
    monkeypatch.setattr(kept_answers, "_BLOCK_RECORDS", BLOCK)


@pytest.fixture
def source(tmp_path: Path, sentences: list[str]) -> Path:
    """Texts of all lengths, some long, some missing, and a broken line."""
    path = tmp_path / "texts.jsonl"
    lines = []
    for number in range(NUM_ROWS):
        text = None if number % 13 == 5 else " ".join(sentences[number % 60 :][: 1 + number % 3 * (number % 9)])
        lines.append(json.dumps({"text": text, "id": f"n{number}", "when": number / 4}) if number != 31 else "{broken")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def list_words(run: Path, source: Path, out: Path) -> list[str]:
    kept = [] if out.suffix == ".npz" else ["--keep-columns"]
    return ["predict", "embed", str(run), str(source), "--device", "cpu", *kept, "--out", str(out)]


def answer_whole(command: Command, run: Path, source: Path, out: Path) -> bytes:
    whole = out.with_name(f"whole{out.suffix}")
    result = command(*list_words(run, source, whole))
    assert result.code == 0, result
    return whole.read_bytes()


@pytest.fixture
def start(prestarted: Prestarted, trained_run: Path, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Starts a prediction in a process of its own."""
    said = tmp_path_factory.mktemp("said") / "predict"

    def start(out: Path, **options: Any) -> Child:
        arguments = {"words": list_words(trained_run, source, out), "part": PART, "block": BLOCK, **options}
        return prestarted.start("killed_prediction:run_in_parts", arguments, said)

    return start


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("suffix", "sync", "num_kept"),
    [
        (".parquet", 6, 40),
        *(
            pytest.param(suffix, sync, num_kept, marks=SLOW)
            for suffix in (".jsonl", ".npz", ".parquet")
            for sync, num_kept in ((2, 0), (3, 0), (4, 20), (5, 20), (7, 40), (12, 100), (13, 100))
        ),
    ],
)
def test_a_killed_command_goes_on_to_the_same_bytes(
    command: Command,
    trained_run: Path,
    source: Path,
    start: Start,
    tmp_path: Path,
    suffix: str,
    sync: int,
    num_kept: int,
) -> None:
    """The first sync is the lock's, then there are two to a part."""
    out = tmp_path / f"out{suffix}"
    child = start(out, last_sync=sync)
    assert child.wait() == -signal.SIGKILL, child.text()
    assert not out.exists()
    asked = count_asked(command, trained_run, source, out)
    assert asked == NUM_ROWS - num_kept, "what is kept is read, not answered again"
    assert out.read_bytes() == answer_whole(command, trained_run, source, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, out.name, f"whole{suffix}"])


def count_asked(command: Command, run: Path, source: Path, out: Path) -> int:
    """Answer the rest; how many rows went to the model."""
    asked: list[Any] = []
    stream = Pipeline.stream

    def watch(self: Any, items: Any, **options: Any) -> Any:
        def note() -> Any:
            for item in items:
                asked.append(item)
                yield item

        return stream(self, note(), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "stream", watch)
        result = command(*list_words(run, source, out))
    assert result.code == 0, result
    assert "1 broken records were skipped" in result.err
    assert "8 of 107 texts have no text; their answer is null" in result.err
    return len(asked)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".parquet"])
def test_kills_at_random_moments_lose_nothing(
    command: Command, trained_run: Path, source: Path, start: Start, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"out{suffix}"
    moments = random.Random(0)
    for _ in range(3):
        process = start(out, pause_s=0.005)
        begin, manifest = time.monotonic(), tmp_path / f".{out.name}.parts" / "manifest.json"
        before = manifest.stat().st_mtime_ns if manifest.exists() else 0
        while process.poll() is None and time.monotonic() - begin < 70:
            if manifest.exists() and manifest.stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(moments.random() * 0.5)
        process.send(signal.SIGKILL)
        process.wait()
        if out.exists():
            break
    if not out.exists():
        assert command(*list_words(trained_run, source, out)).code == 0
    assert out.read_bytes() == answer_whole(command, trained_run, source, out)


def stop_after(monkeypatch: pytest.MonkeyPatch, num_records: int, error: BaseException) -> None:
    write = kept_answers.KeptAnswers.write
    seen = 0

    def fail(self: Any, *given: Any, **named: Any) -> None:
        nonlocal seen
        seen += 1
        if seen > num_records:
            raise error
        write(self, *given, **named)

    monkeypatch.setattr(kept_answers.KeptAnswers, "write", fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; 40 answers are kept beside {out}, and the same command goes on after"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "40 answers are kept beside {out}, and the same command"),
    ],
    ids=["Ctrl-C", "full disk"],
)
def test_what_stops_it_says_how_many_answers_are_kept(
    command: Command, trained_run: Path, source: Path, tmp_path: Path, error: BaseException, code: int, said: str
) -> None:
    out = tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 51, error)
        result = command(*list_words(trained_run, source, out))
    assert result.code == code
    assert said.format(out=out) in result.err
    if code == 1:
        assert f"error: [Errno 28] No space left on device: '{out}'" in result.err
    result = command(*list_words(trained_run, source, out))
    assert "going on after 40 answers that an earlier command kept" in result.err
    assert "67 texts in" in result.err
    assert "after 40 that were kept" in result.err
    assert out.read_bytes() == answer_whole(command, trained_run, source, out)


def test_before_anything_is_kept_nothing_is_left(
    command: Command, trained_run: Path, source: Path, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 19, KeyboardInterrupt())
        result = command(*list_words(trained_run, source, tmp_path / "out.jsonl"))
    assert (result.code, result.err.splitlines()[-1]) == (
        130,
        "interrupted; nothing was written, and the same command begins again",
    )
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


def keep_some(command: Command, run: Path, source: Path, out: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 51, KeyboardInterrupt())
        assert command(*list_words(run, source, out)).code == 130


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("options", "its pooling was null, here it is cls"),
        ("kind", "its kind was embed, here it is fill-mask"),
        ("columns", "its kept columns was all, here it is []"),
        ("source", "its source was {source} (1 files of"),
        ("stdin", "its source was {source} (1 files of"),
        ("model", "its model was {run}"),
    ],
)
def test_another_command_is_refused_unless_it_may_overwrite(
    command: Command,
    trained_run: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    said: str,
) -> None:
    out = tmp_path / "out.jsonl"
    keep_some(command, trained_run, source, out)
    words = list_words(trained_run, source, out)
    if change == "options":
        words += ["--pooling", "cls"]
    elif change == "kind":
        words[1] = "fill-mask"
    elif change == "columns":
        words.remove("--keep-columns")
    elif change == "source":
        source.write_text(source.read_text(encoding="utf-8") + '{"text": "one more"}\n', encoding="utf-8")
    elif change == "stdin":
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat\n")))
        words[3:4] = ["-"]
        words.remove("--keep-columns")
    else:
        words[2] = str(shutil.copytree(trained_run, tmp_path / "copy"))
    refusal = command(*words)
    refusal.assert_refused("keeps 40 answers", "repeat that command", "--overwrite")
    if change != "stdin":
        assert said.format(source=source, run=trained_run) in refusal.err
    assert json.loads((tmp_path / ".out.jsonl.parts" / "manifest.json").read_text())["num_records"] == 40
    result = command(*words, "--overwrite")
    assert result.code == 0, result
    assert "going on" not in result.err
    assert not (tmp_path / ".out.jsonl.parts").exists()


def test_the_same_command_may_say_overwrite_and_other_sizes_of_batches(
    command: Command, trained_run: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    keep_some(command, trained_run, source, out)
    result = command(*list_words(trained_run, source, out), "--overwrite", "--batch-tokens", 512)
    assert "going on after 40 answers" in result.err
    assert len(out.read_text(encoding="utf-8").splitlines()) == NUM_ROWS


@pytest.mark.parametrize("damage", ["manifest", "answers"])
def test_kept_answers_that_are_damaged_are_computed_again(
    command: Command, trained_run: Path, source: Path, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "out.parquet"
    keep_some(command, trained_run, source, out)
    folder = tmp_path / ".out.parquet.parts"
    if damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        os.truncate(folder / "answers", 10)
    result = command(*list_words(trained_run, source, out))
    assert result.code == 0, result
    assert "are not whole; all are computed again" in result.err
    assert out.read_bytes() == answer_whole(command, trained_run, source, out)


def test_a_list_in_python_goes_on_and_another_list_does_not(trained_run: Path, tmp_path: Path) -> None:
    out, texts = tmp_path / "out.npz", [f"the cat {number}" for number in range(90)]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 51, KeyboardInterrupt())
        with pytest.raises(RunInterruptedError, match=r"^interrupted; 40 answers are kept"):
            mw.predict("embed", trained_run, texts, out=out, device="cpu")
    with pytest.raises(mw.InputError, match=r"90 texts in memory .*, here it is 89 texts in memory"):
        mw.predict("embed", trained_run, texts[1:], out=out, device="cpu")
    mw.predict("embed", trained_run, texts, out=out, device="cpu")
    mw.predict("embed", trained_run, texts, out=tmp_path / "whole.npz", device="cpu")
    assert out.read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_a_model_in_memory_is_known_by_its_weights(bert_model: Any, tmp_path: Path) -> None:
    model, tokenizer = bert_model
    out, texts = tmp_path / "out.jsonl", [f"the cat {number}" for number in range(90)]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 51, KeyboardInterrupt())
        with pytest.raises(RunInterruptedError):
            mw.predict("embed", model, texts, tokenizer=tokenizer, out=out)
    next(model.parameters()).data.add_(1.0)
    with pytest.raises(mw.InputError, match=r"its model was memory:.*, here it is memory:"):
        mw.predict("embed", model, texts, tokenizer=tokenizer, out=out)


@pytest.fixture
def bert_model(trained_run: Path) -> Any:
    folder = trained_run / "model"
    return mw.MaskedLanguageModel.from_pretrained(folder), load_tokenizer(folder)
