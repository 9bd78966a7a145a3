"""A model small enough to be asked by hand, and the published files where they are at hand."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "mlm_eval.tar.xz"


@pytest.fixture
def small_model(tokenizer: Tokenizer) -> MaskedLanguageModel:
    encoder = build_tiny_bert(
        tokenizer, hidden_size=16, num_hidden_layers=1, initializer_range=0.5, max_position_embeddings=24
    )
    return MaskedLanguageModel(
        encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    ).train()


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    def write(records: Iterable[Any], name: str = "items.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def published_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BLiMP and LAMA as published."""
    if not PUBLISHED.is_file():
        pytest.skip("needs ../shared/data/mlm_eval.tar.xz")
    folder = tmp_path_factory.mktemp("published")
    names = ("blimp/passive_1.jsonl", "lama/TREx/P140.jsonl", "lama/Squad/test.jsonl")
    with tarfile.open(PUBLISHED) as archive:
        archive.extractall(
            folder, [member for member in archive if member.name.removeprefix("./") in names], filter="data"
        )
    return folder
