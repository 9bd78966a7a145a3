"""config.json of a ModernBERT has every setting that text-embeddings-inference refuses to do without."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.heads import build_embedding_head, build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity
from maskwright.text.tokenizer.tokenizer import Tokenizer

_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 40}
_REQUIRED = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_activation",
    "max_position_embeddings",
    "initializer_range",
    "initializer_cutoff_factor",
    "norm_eps",
    "norm_bias",
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "cls_token_id",
    "sep_token_id",
    "global_rope_theta",
    "attention_bias",
    "attention_dropout",
    "global_attn_every_n_layers",
    "local_attention",
    "local_rope_theta",
    "classifier_activation",
]


def build(kind: str, tokenizer: Tokenizer) -> MaskedLanguageModel | TaskModel:
    encoder = ModernBERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **_SHAPE)
    if kind == "masks":
        return MaskedLanguageModel(encoder, tokenizer=tokenizer, mlm_head_activation="relu").eval()
    if kind == "similarity":
        similarity = ContrastiveSimilarity("mean", 0.05, max_length=24)
        return TaskModel(encoder, build_embedding_head(encoder, 1, similarity.describe()), similarity).eval()
    task = Classification(["good", "bad"])
    return TaskModel(encoder, build_sequence_head(encoder, 2, {}), task).eval()


@pytest.mark.parametrize("kind", ["masks", "similarity", "classification"])
def test_every_required_setting_is_there_and_read_back(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build(kind, tokenizer)
    model.save_pretrained(tmp_path, tokenizer)
    config = json.loads((tmp_path / "config.json").read_text())
    assert [name for name in _REQUIRED if config.get(name) is None] == []
    assert (config["bos_token_id"], config["eos_token_id"]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert config["classifier_activation"] == ("relu" if kind == "masks" else "gelu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = type(model).from_pretrained(tmp_path)
    pooling = model.encoder.config.classifier_pooling  # a classifier's file has that of its head
    assert replace(again.encoder.config, classifier_pooling=pooling) == model.encoder.config
