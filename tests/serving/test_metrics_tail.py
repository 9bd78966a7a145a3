from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from maskwright.serving import metrics_tail
from maskwright.serving.metrics_tail import MetricsTail, read_last_values


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write_lines(file: Path, steps: range, mode: str = "ab") -> None:
    with file.open(mode) as opened:
        for step in steps:
            opened.write(json.dumps({"step": step, "loss": 10.0 - step, "lr": 1}).encode() + b"\n")


def list_steps(tail: MetricsTail, key: str = "loss") -> list[float]:
    return tail.shown.by_key[key].list_points(1_000)[:, 0].tolist() if key in tail.shown.by_key else []


def test_only_new_bytes_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = metrics_tail._parse_quickly
    monkeypatch.setattr(metrics_tail, "_parse_quickly", lambda chunk: parsed.append(chunk) or parse(chunk))
    tail = MetricsTail(file)
    write_lines(file, range(1, 4))
    assert tail.read()
    write_lines(file, range(4, 6))
    assert tail.read()
    assert tail.read()
    assert b"".join(parsed) == file.read_bytes()
    assert list_steps(tail) == [1, 2, 3, 4, 5]
    assert tail.generation == 0


def test_a_line_that_is_not_whole_yet_is_awaited(file: Path) -> None:
    tail = MetricsTail(file)
    write_lines(file, range(1, 3))
    file.open("ab").write(b'{"step": 3, "lo')
    tail.read()
    assert list_steps(tail) == [1, 2]
    assert tail.read_share == 1
    file.open("ab").write(b'ss": 1.5}\n')
    tail.read()
    assert list_steps(tail) == [1, 2, 3]
    assert tail.curves.num_damaged == 0


@pytest.mark.parametrize("kind", ["shorter", "replaced", "overwritten in place", "removed"])
def test_a_file_that_changed_is_read_again(file: Path, kind: str) -> None:
    tail = MetricsTail(file)
    write_lines(file, range(1, 40))
    tail.read()
    if kind == "shorter":
        write_lines(file, range(100, 103), "wb")
    elif kind == "replaced":
        write_lines(file.with_name("new"), range(100, 300), "wb")
        file.with_name("new").replace(file)
    elif kind == "overwritten in place":
        write_lines(file, range(100, 300), "wb")
    else:
        file.unlink()
    tail.read()
    assert tail.generation == 1
    assert all(step >= 100 for step in list_steps(tail))
    assert bool(list_steps(tail)) == (kind != "removed")


@pytest.mark.parametrize(
    "damaged",
    [
        b"no JSON",
        b'{"step": 2, "loss": ',
        b'["step", 2]',
        b'{"loss": 2}',
        b'{"step": -1, "loss": 2}',
        b'{"step": 1.5, "loss": 2}',
        b'{"step": 2, "loss": "low"}',
        b'{"step": 2, "loss": [1]}',
        b'{"step": 2, "step": 3, "loss": {"a": 1}}',
        b"\xff\xfe\x00",
        b'{"step": 99999999999999999999}',
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b"",
    ],
)
def test_damaged_lines_are_counted_and_left_out(file: Path, damaged: bytes) -> None:
    file.write_bytes(b'{"step": 1, "loss": 3}\n' + damaged + b'\n{"step": 5, "loss": 1}\n')
    tail = MetricsTail(file)
    tail.read()
    assert list_steps(tail) == [1, 5]
    assert tail.curves.num_damaged == 1
    assert tail.curves.num_lines == 3


def test_both_parsers_read_the_same(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"step": 1, "loss": 3, "whole": 2**60, "skipped": None},
        {"step": 2, "val_loss": 2.5, "epoch_end": True},
        {"step": 3, "loss": 1e-300, "skipped": 0, "flag": False},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    quick, slow = MetricsTail(file), MetricsTail(file)
    quick.read()
    monkeypatch.setattr(metrics_tail, "_parse_quickly", lambda chunk: None)
    slow.read()
    assert set(quick.shown.by_key) == set(slow.shown.by_key) == {"loss", "val_loss", "whole", "skipped", "flag"}
    for key, curve in quick.shown.by_key.items():
        assert np.array_equal(curve.list_points(10), slow.shown.by_key[key].list_points(10))


def test_values_that_are_not_finite_are_no_points(file: Path) -> None:
    file.write_text('{"step": 1, "loss": NaN}\n{"step": 2, "loss": Infinity}\n{"step": 3, "loss": 2.0}\n')
    tail = MetricsTail(file)
    tail.read()
    assert list_steps(tail) == [3]


def test_a_line_longer_than_a_chunk_is_skipped_in_bounded_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_tail, "_CHUNK_BYTES", 64)
    file.write_bytes(b'{"step": 1, "loss": 3}\n{"step": 2, "loss": ' + b"1" * 300 + b'}\n{"step": 3, "loss": 2}\n')
    tail = MetricsTail(file)
    tail.read()
    assert list_steps(tail) == [1, 3]
    assert tail.curves.num_damaged == 1


def test_a_long_file_shows_samples_until_it_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_tail, "_CHUNK_BYTES", 4_096)
    monkeypatch.setattr(metrics_tail, "_SAMPLED_FROM_BYTES", 2**16)
    monkeypatch.setattr(metrics_tail, "_SAMPLE_BYTES", 256)
    write_lines(file, range(1, 5_001))
    tail = MetricsTail(file)
    assert not tail.read(budget_s=0)
    assert 0 < tail.read_share < 0.1
    first = tail.shown.by_key["loss"].list_points(1_000)[:, 0]
    assert first.min() == 1
    assert first.max() > 4_990
    assert tail.read()
    assert tail.read_share == 1
    assert tail.curves.num_lines == 5_000


def test_keys_without_end_do_not_fill_the_memory(file: Path) -> None:
    file.write_text("".join(f'{{"step": {step}, "key_{step}": 1}}\n' for step in range(1_000)))
    tail = MetricsTail(file)
    tail.read()
    assert len(tail.shown.by_key) == metrics_tail._MOST_KEYS


def test_links_and_pipes_are_not_followed(tmp_path: Path, file: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "loss": 42}\n')
    file.symlink_to(secret)
    tail = MetricsTail(file)
    tail.read()
    assert list_steps(tail) == []
    assert read_last_values(file) == {}
    file.unlink()
    os.mkfifo(file)
    tail.read()
    assert read_last_values(file) == {}


def test_last_values_come_from_the_end_of_the_file(file: Path) -> None:
    write_lines(file, range(1, 2_000))
    file.open("ab").write(b'{"step": 2000, "val_loss": 1.5, "loss": null}\n{"step": 2001, "loss"')
    assert read_last_values(file) == {"step": 2000, "loss": 10.0 - 1999, "lr": 1, "val_loss": 1.5}
