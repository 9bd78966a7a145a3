from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.batch import from_padded
from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.model import build_model
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState
from tolerances import assert_rounded, count_terms, rounding

SHAPE = {"family": "modernbert", "variant": "tiny", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LONGER = {"max_position_embeddings": 64, "global_rope_theta": 50_000.0}
BEGIN, END = 500.0, 50_000.0


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


def test_the_tokenizer_of_a_longer_model_names_its_new_length(tokenizer: Tokenizer, tmp_path: Path) -> None:
    short = build(tokenizer, SHAPE | {"max_position_embeddings": 32})
    short.save_pretrained(tmp_path / "short", tokenizer)
    kept = load_tokenizer(tmp_path / "short")
    assert kept.model_max_length == 32
    longer = build(kept, {"from": str(tmp_path / "short"), **LONGER}, max_length=64)
    longer.save_pretrained(tmp_path / "longer", kept)
    assert load_tokenizer(tmp_path / "longer").model_max_length == 64


def test_a_larger_base_changes_what_is_computed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build(tokenizer, SHAPE).save_pretrained(tmp_path, tokenizer)
    ids = torch.arange(5, 37)[None]
    models = [build(tokenizer, {"from": str(tmp_path), **settings}).eval() for settings in ({}, LONGER)]
    first, second = (model(input_ids=ids).logits for model in models)
    assert not torch.allclose(first, second)


def test_learned_positions_cannot_be_stretched(tokenizer: Tokenizer, trained_run: Path) -> None:
    with pytest.raises(InputError, match=r"brings its own shape; remove model\.max_position_embeddings, which only"):
        build(tokenizer, {"from": str(trained_run), "max_position_embeddings": 64}, max_length=64)


@pytest.fixture
def ramped(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """A model whose global base goes from 500 to 50,000 in the first half of a run."""
    build(tokenizer, {**SHAPE, "global_rope_theta": BEGIN}).save_pretrained(tmp_path / "short", tokenizer)
    return build(tokenizer, {"from": str(tmp_path / "short"), **LONGER, "rope_ramp_share": 0.5}, max_length=64)


def test_a_base_grows_evenly_in_its_logarithm_and_stays_at_its_end(ramped: Any) -> None:
    local = ramped.encoder.config.local_rope_theta
    for progress, base in [(0.0, BEGIN), (0.25, 5_000.0), (0.5, END), (0.9, END), (0.25, 5_000.0)]:
        ramped.follow(progress)
        config = ramped.encoder.config
        assert config.global_rope_theta == pytest.approx(base)
        assert config.local_rope_theta == local
        assert ramped.encoder.rotary_ramp.bases.tolist() == pytest.approx([base, local])


@pytest.mark.parametrize("progress", [0.0, 0.3, 0.5])
def test_what_is_saved_on_the_way_computes_what_was_trained(ramped: Any, tmp_path: Path, progress: float) -> None:
    ramped.eval()
    ids = torch.arange(5, 69)[None]
    begun = ramped(input_ids=ids).logits
    ramped.follow(progress)
    ramped.save_pretrained(tmp_path / "saved")
    logits = ramped(input_ids=ids).logits
    num_terms = count_terms(num_layers=4, width=32, length=64)
    assert_rounded(MaskedLanguageModel.from_pretrained(tmp_path / "saved")(input_ids=ids).logits, logits, num_terms)
    is_same = (logits - begun).abs().max() <= rounding(num_terms, float(begun.abs().max()))
    assert is_same == (progress == 0)


def test_steps_tell_the_model_how_far_the_run_is(ramped: Any) -> None:
    engine = Engine(ramped, OptimizerConfig(), ScheduleConfig(), TrainingConfig(device="cpu"), seed=0)
    step = engine.begin(TrainingState(), print)
    step(from_padded(torch.arange(5, 37)[None]), step=0, epoch=0, mask_ratio=0.15, progress=0.25)
    assert ramped.encoder.config.global_rope_theta == pytest.approx(5_000.0)


def test_a_ramp_without_a_base_to_reach_or_a_model_to_begin_from_is_refused(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    build(tokenizer, SHAPE).save_pretrained(tmp_path, tokenizer)
    with pytest.raises(InputError, match="no rotary base changes"):
        build(tokenizer, {"from": str(tmp_path), "max_position_embeddings": 64, "rope_ramp_share": 0.1})
    with pytest.raises(InputError, match="rope_ramp_share is for a trained model"):
        build(tokenizer, {**SHAPE, "rope_ramp_share": 0.1})
