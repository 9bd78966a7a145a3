"""The clients that people have, against a server with a key; each script of `clients/` is a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from running import Running, running

SCRIPTS = Path(__file__).parent / "clients"
PACKAGES = {
    "openai_client": ["openai"],
    "hub_client": ["huggingface_hub"],
    "langchain_client": ["langchain_openai", "langchain_huggingface"],
    "llama_index_client": ["llama_index"],
    "prometheus": ["prometheus_client"],
}
KEY = "s3cret"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guarded(model_folders: dict[str, Path]) -> Iterator[Running]:
    with running(list(model_folders.values()), api_key=KEY) as server:
        yield server


def run_client(name: str, url: str) -> None:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), url, KEY]
    environment = {**os.environ, "HF_HUB_OFFLINE": "0"}  # the hub's client takes this server for the network
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_client_gets_what_it_expects(guarded: Running, name: str) -> None:
    missing = [package for package in PACKAGES[name] if find_spec(package) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: pip install {' '.join(missing).replace('_', '-')}")
    run_client(name, guarded.url)


def test_the_hubs_client_classifies(model_folders: dict[str, Path]) -> None:
    with running([model_folders["inference"]], api_key=KEY) as server:
        run_client("hub_classes", server.url)
