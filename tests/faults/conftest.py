"""Processes to interrupt, kill and starve; the machinery is that of the benchmark of faults."""

from __future__ import annotations

import pytest
from fault_lab import Lab
from prestarted import Prestarted


@pytest.fixture(scope="session")
def lab(prestarted: Prestarted, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One for all files: their runs have names of their own."""
    lab = Lab(tmp_path_factory.mktemp("lab"), prestarted)
    lab.run_unbroken()
    return lab
