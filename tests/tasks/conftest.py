"""A tiny encoder with its tokenizer, and files to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from task_lab import Lab, build_records, write_lines

from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def encoder_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "tiny"
    # Weights large enough to learn from within seconds.
    encoder = build_tiny_bert(tokenizer, max_position_embeddings=32, initializer_range=0.1)
    encoder.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def lab(encoder_folder: Path, tmp_path: Path) -> Lab:
    write_lines(tmp_path / "train.jsonl", build_records(64, seed=0))
    write_lines(tmp_path / "validation.jsonl", build_records(32, seed=1))
    return Lab(tmp_path, encoder_folder)
