"""Preparation by other processes and by a Ray cluster: byte for byte what this process makes, whoever is lost."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.errors import InputError, RunError
from maskwright.runs import task_runners
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PartMaker, PrepareOptions, plan_tasks
from maskwright.runs.ray_cluster import connect_ray
from maskwright.runs.task_runners import LocalProcesses, choose_runner
from maskwright.sections.data import QualityConfig, build_sources
from maskwright.storage import read_json
from maskwright.text.tokenizer.tokenizer import Tokenizer

OPTIONS = PrepareOptions(validation_share=0.2, part_chars=1500, quality=QualityConfig(min_words=4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of which some are many shards and some a part of one; one is empty."""
    words = ["river", "stone", "bridge", "lamp", "garden", "winter", "paper", "engine", "harbour", "letter"]
    random = np.random.default_rng(0)
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, lines in enumerate((120, 3, 4, 0, 40, 2, 60, 80)):
        texts = [" ".join(random.choice(words, random.integers(2, 12))) for _ in range(lines)]
        (folder / f"{number}.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return folder


def run(folder: Path, tokenizer: Tokenizer, out: Path, options: PrepareOptions = OPTIONS, **given: Any) -> Any:
    return prepare(build_sources(str(folder)), tokenizer, out, options, **{"num_workers": 2, **given})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tasks_follow_the_sizes_of_files(folder: Path) -> None:
    tasks = plan_tasks(build_sources(str(folder)), 1500)
    assert [(task.first, task.end) for task in tasks] == [(0, 1), (1, 5), (5, 7), (7, 8)]
    assert [task.end for task in plan_tasks(build_sources(str(folder)), 10**9)] == [None]


def test_nothing_is_lost_between_tasks(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    manifest = run(folder, tokenizer, tmp_path / "out")
    texts = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    kept = [text for text in texts if len(text.split()) >= 4]
    assert manifest["num_documents"] == len(kept)
    assert manifest["num_chars"] == sum(map(len, kept))
    assert manifest["dropped_documents"] == {"under 4 words": len(texts) - len(kept)}


def test_a_second_start_reads_no_finished_task_again(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maskwright.runs import prepare as module

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_summarise", stop)
        with pytest.raises(KeyboardInterrupt):
            run(folder, tokenizer, tmp_path / "out")
    (tmp_path / ".out.preparing" / "tasks" / "000-00001.json").unlink()
    asked: list[str] = []
    original = PartMaker.give
    monkeypatch.setattr(PartMaker, "give", lambda *given: (asked.append(given[1].name), original(*given))[1])
    run(folder, tokenizer, tmp_path / "out")
    assert asked == ["000-00001"]
    monkeypatch.undo()
    run(folder, tokenizer, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_broken_records_are_judged_over_all_tasks(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    for number in range(4):
        lines = [json.dumps({"text": f"a line with some words {number} {line}"}) for line in range(150)]
        broken = lines[:10] + ["no JSON"] * 140 if number == 1 else lines
        (rows / f"{number}.jsonl").write_text("\n".join(broken), encoding="utf-8")
    source = {"path": str(rows), "max_bad_share": 0.3}
    said: list[str] = []
    manifest = prepare(build_sources(source), tokenizer, tmp_path / "out", OPTIONS, num_workers=1, say=said.append)
    assert manifest["num_documents"] == 460
    assert any("140 broken records were skipped" in line for line in said)
    with pytest.raises(InputError, match="140 of the first 600 records are broken"):
        prepare(build_sources(source | {"max_bad_share": 0.1}), tokenizer, tmp_path / "other", OPTIONS, num_workers=1)
    assert not (tmp_path / "other").exists()


def test_unknown_places_are_refused(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'spark' does no tasks; known are processes, ray"):
        run(folder, tokenizer, tmp_path / "out", on="spark")


@pytest.mark.slow
def test_processes_make_the_same_shards_also_when_one_is_killed(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tokenizer, tmp_path / "one")
    run(folder, tokenizer, tmp_path / "two", on="processes")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    monkeypatch.setattr(task_runners, "_do_all", _do_all_or_die)
    monkeypatch.setenv("DIE_AT", str(tmp_path / "died"))
    run(folder, tokenizer, tmp_path / "three", on="processes")
    assert (tmp_path / "died").exists()
    assert contents(tmp_path / "three") == contents(tmp_path / "one")


def _do_all_or_die(job: Any, task: Any, folder: Path) -> Any:
    """At its first call of all processes it is killed."""
    mark = Path(os.environ["DIE_AT"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _original(job, task, folder)


_original = task_runners._do_all


@pytest.mark.slow
def test_a_task_that_always_ends_its_process_is_told(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_runners, "_LOSSES", 2)
    monkeypatch.setattr(task_runners, "_do_all", _die)
    with pytest.raises(RunError, match="were ended 2 times"):
        run(folder, tokenizer, tmp_path / "out", on="processes")
    assert isinstance(choose_runner("processes", 2), LocalProcesses)


def _die(job: Any, task: Any, folder: Path) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def ray_nodes() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray clusters need the extra `cluster`")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    connect_ray.cache_clear()
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        connect_ray.cache_clear()


@pytest.mark.slow
def test_ray_makes_the_same_shards_also_when_a_node_is_killed(
    ray_nodes: Any, folder: Path, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tokenizer, tmp_path / "one")
    monkeypatch.chdir(folder.parent)
    prepare(build_sources("texts"), tokenizer, tmp_path / "two", OPTIONS, on="ray")
    made, expected = contents(tmp_path / "two"), contents(tmp_path / "one")
    assert {name: made[name] for name in made if name != "manifest.json"} == {
        name: expected[name] for name in expected if name != "manifest.json"
    }
    doomed = [ray_nodes.add_node(num_cpus=2)]

    def lose_node(text: str) -> None:
        if doomed:
            ray_nodes.remove_node(doomed.pop(), allow_graceful=False)

    run(folder, tokenizer, tmp_path / "three", on="ray", say=lose_node)
    assert not doomed
    assert contents(tmp_path / "three") == expected
    alike = replace(OPTIONS, quality=QualityConfig(drop_duplicates=True, drop_near_duplicates=True))
    (folder / "2.txt").write_bytes((folder / "0.txt").read_bytes())
    run(folder, tokenizer, tmp_path / "judged", alike)
    doomed.append(ray_nodes.add_node(num_cpus=2))  # lost while documents are compared
    run(folder, tokenizer, tmp_path / "judged_by_ray", alike, on="ray", memory_bytes=1 << 16, say=lose_node)
    assert not doomed
    assert contents(tmp_path / "judged_by_ray") == contents(tmp_path / "judged")
    assert sum(read_json(tmp_path / "judged" / "manifest.json")["dropped_documents"].values()) > 100
    (folder / "7.txt").write_bytes(b"\0" * 2000)
    with pytest.raises(InputError, match="is a binary file"):
        run(folder, tokenizer, tmp_path / "four", on="ray")
    assert not (tmp_path / "four").exists()
