"""Tiny models with weights large enough for uneven answers, as transformers writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import MAX_LENGTH, SHAPE, save

from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer


@pytest.fixture(scope="session")
def bert_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of 24 positions with a prediction head."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=MAX_LENGTH, **SHAPE)
    return save(transformers.BertForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def roberta_folder(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa of 24 positions, whose words carry the space before them."""
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(sentences, type="byte_level_bpe", vocab_size=320)
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=MAX_LENGTH + tokenizer.pad_token_id + 1,
        pad_token_id=tokenizer.pad_token_id,
        type_vocab_size=1,
        **SHAPE,
    )
    return save(transformers.RobertaForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("roberta"))
