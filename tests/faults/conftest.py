"""Processes to interrupt, kill and starve; the machinery is that of the benchmark of faults."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(_BENCHMARKS))

from fault_lab import Lab  # noqa: E402  (found where the line above says)
from prestarted import Prestarted  # noqa: E402


@pytest.fixture(scope="session")
def prestarted() -> Iterator[Prestarted]:
    parent = Prestarted((Path(__file__).parent, Path(__file__).parents[1]))
    yield parent
    parent.close()


@pytest.fixture(scope="session")
def lab(prestarted: Prestarted, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One for all files: their runs have names of their own."""
    lab = Lab(tmp_path_factory.mktemp("lab"), prestarted)
    lab.run_unbroken()
    return lab
