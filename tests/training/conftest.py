"""A tiny model and corpus for the tests of the training loop. Ids 0 to 4 are [PAD] [UNK] [CLS] [SEP] [MASK]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel

VOCAB_SIZE = 60


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def build_model() -> Callable[..., MaskedLanguageModel]:
    def build(dropout: float = 0.0, seed: int = 0, **arguments: Any) -> MaskedLanguageModel:
        torch.manual_seed(seed)
        encoder = BERT.from_variant(
            "tiny",
            vocab_size=VOCAB_SIZE,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        settings = {"mask_token_id": 4, "special_token_ids": range(5), "mlm_head_dropout": dropout, **arguments}
        return MaskedLanguageModel(encoder, VOCAB_SIZE, **settings)

    return build


def make_documents(num_documents: int, seed: int = 0) -> list[list[int]]:
    """Runs of consecutive ids, so that a masked token follows from its neighbours."""
    generator = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        start, length = int(generator.integers(5, VOCAB_SIZE)), int(generator.integers(3, 12))
        documents.append([5 + (start + offset) % (VOCAB_SIZE - 5) for offset in range(length)])
    return documents


@pytest.fixture
def build_loader() -> Callable[..., PackedLoader]:
    def build(num_documents: int = 48, rows_per_batch: int = 4, seed: int = 0, **arguments: Any) -> PackedLoader:
        return PackedLoader(
            TokenStore.from_documents(make_documents(num_documents, seed), VOCAB_SIZE),
            cls_token_id=2,
            sep_token_id=3,
            pad_token_id=0,
            row_length=16,
            rows_per_batch=rows_per_batch,
            seed=seed,
            **arguments,
        )

    return build


@pytest.fixture
def padded_batches() -> list[dict[str, torch.Tensor]]:
    """Six batches of four padded rows of unlike lengths."""
    batches = []
    documents = make_documents(24)
    for start in range(0, 24, 4):
        input_ids = torch.zeros(4, 16, dtype=torch.long)
        for row, document in enumerate(documents[start : start + 4]):
            ids = [2, *document, 3]
            input_ids[row, : len(ids)] = torch.tensor(ids)
        batches.append({"input_ids": input_ids, "attention_mask": (input_ids != 0).long()})
    return batches
