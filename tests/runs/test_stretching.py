from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.models.modernbert import ModernBERT
from maskwright.runs.model import build_model
from maskwright.text.tokenizer import Tokenizer

SHAPE = {"family": "modernbert", "variant": "tiny", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LONGER = {"max_position_embeddings": 64, "global_rope_theta": 50_000.0}


def build(tokenizer: Tokenizer, model: dict[str, Any], max_length: int = 32, mode: str = "mlm") -> Any:
    values = {"model": model, "data": {"max_length": max_length}, "training": {"mode": mode}}
    return build_model(build_config(values), tokenizer)


@pytest.mark.parametrize("mode", ["mlm", "rtd"])
def test_every_encoder_of_a_model_to_continue_from_takes_more_positions_and_keeps_its_weights(
    tokenizer: Tokenizer, tmp_path: Path, mode: str
) -> None:
    short = build(tokenizer, SHAPE, mode=mode)
    short.save_pretrained(tmp_path, tokenizer)
    longer = build(tokenizer, {"from": str(tmp_path), **LONGER}, max_length=64, mode=mode)
    encoders = [module for module in longer.modules() if isinstance(module, ModernBERT)]
    assert len(encoders) == (2 if mode == "rtd" else 1)
    for encoder in encoders:
        assert (encoder.max_length, encoder.config.global_rope_theta) == (64, 50_000.0)
        assert encoder.config.local_rope_theta == short.encoder.config.local_rope_theta
    weights = longer.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in short.state_dict().items())


def test_a_larger_base_changes_what_is_computed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build(tokenizer, SHAPE).save_pretrained(tmp_path, tokenizer)
    ids = torch.arange(5, 37)[None]
    models = [build(tokenizer, {"from": str(tmp_path), **settings}).eval() for settings in ({}, LONGER)]
    first, second = (model(input_ids=ids).logits for model in models)
    assert not torch.allclose(first, second)


def test_learned_positions_cannot_be_stretched(tokenizer: Tokenizer, trained_run: Path) -> None:
    with pytest.raises(InputError, match=r"brings its own shape; remove model\.max_position_embeddings, which only"):
        build(tokenizer, {"from": str(trained_run), "max_position_embeddings": 64}, max_length=64)
