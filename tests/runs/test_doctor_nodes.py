"""Machines of a job compared: what differs is named, and two real processes agree."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.config import build_config
from maskwright.runs.doctor.nodes import NodeFacts, compare_nodes, examine_nodes

FACTS = NodeFacts(0, "one", "c0de", "da7a", "NVIDIA H100", 100.0, 1 << 40)
OTHER = replace(FACTS, rank=1, host="two")


def find(facts: list[NodeFacts], area: str) -> Any:
    return next(finding for finding in compare_nodes(facts) if finding.area == area)


def test_equal_machines_have_no_findings_to_act_on() -> None:
    assert {finding.verdict for finding in compare_nodes([FACTS, OTHER])} == {"OK"}
    assert find([FACTS, OTHER], "nodes").text == "2 processes on 2 machines: one, two"


@pytest.mark.parametrize(
    ("change", "area", "verdict", "text"),
    [
        ({"code": "01d"}, "code", "problem", "two: 01d, which is not that of the others, c0de"),
        ({"data": "01d"}, "data", "problem", "two: 01d, which is not that of the others, da7a"),
        ({"data": "error: no file at a.txt"}, "data", "problem", "two cannot read the data: no file at a.txt"),
        ({"device": "NVIDIA A100"}, "devices", "warning", "2 x NVIDIA H100, 1 x NVIDIA A100"),
        ({"clock_s": 105.0}, "clock", "warning", "clocks differ by up to 5.0 s"),
        ({"free_bytes": 1 << 30}, "disk", "warning", "free at run.out on two, the fullest"),
    ],
)
def test_what_differs_is_named(change: dict[str, Any], area: str, verdict: str, text: str) -> None:
    finding = find([FACTS, replace(FACTS, rank=2), replace(OTHER, **change)], area)
    assert finding.verdict == verdict
    assert text in finding.text
    assert finding.advice


def test_processes_of_one_machine_are_told_apart_by_their_ranks() -> None:
    finding = find([FACTS, replace(FACTS, rank=1, code="01d")], "code")
    assert finding.text == "one (rank 1): 01d, which is not that of the others, c0de"


def test_one_process_finds_its_own_facts(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a text\n" * 3, encoding="utf-8")
    checkup = examine_nodes(build_config({}, [f"data.train={corpus}", "training.device=cpu"]))
    assert checkup.count("problem") == 0
    first = next(finding for finding in checkup.findings if finding.area == "data")
    corpus.write_text("another text\n" * 3, encoding="utf-8")
    again = examine_nodes(build_config({}, [f"data.train={corpus}", "training.device=cpu"]))
    assert first not in again.findings


@pytest.mark.slow
def test_two_processes_agree_and_measure_their_exchange(corpus_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"data": {"train": str(corpus_file)}, "training": {"device": "cpu"}}))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "maskwright"]
    done = subprocess.run(
        [*words, "doctor", "--nodes", "--json", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    findings = {one["area"]: one for one in json.loads(done.stdout)["findings"]}
    assert findings["nodes"]["text"].startswith("2 processes on 1 machines")
    assert "GB/s per process" in findings["exchange"]["text"]
