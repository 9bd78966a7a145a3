"""The rate of a fine-tuning that was given none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console
from task_lab import Lab

from maskwright.config import load_config
from maskwright.models.bert import BERT
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.tasks.new_model import choose_learning_rate, measure_weights


def build_encoder(width: int, size: float) -> BERT:
    """With weights of that root mean square."""
    torch.manual_seed(0)
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": width}
    return BERT.from_variant("tiny", vocab_size=16, initializer_range=size, **shape)


@pytest.mark.parametrize(
    ("width", "size", "rate"),
    [(768, 0.04, 5e-5), (1024, 0.04, 3.8e-5), (128, 0.04, 3e-4), (768, 0.12, 1e-4), (128, 0.12, 6e-4)],
)
def test_narrow_encoders_and_large_weights_get_larger_steps(width: int, size: float, rate: float) -> None:
    encoder = build_encoder(width, size)
    assert measure_weights(encoder) == pytest.approx(size, rel=0.02)
    assert choose_learning_rate(width, measure_weights(encoder)) == pytest.approx(rate, rel=0.03)


def test_the_size_of_weights_is_that_of_the_layers_alone() -> None:
    encoder = build_encoder(64, 0.05)
    before = measure_weights(encoder)
    with torch.no_grad():
        encoder.get_input_embeddings().weight.mul_(100.0)
    assert measure_weights(encoder) == before


def test_a_run_without_a_rate_takes_the_one_that_suits_its_encoder(lab: Lab, tmp_path: Path) -> None:
    config = lab.config(learning_rate=None, epochs=1)
    console = Console(record=True, width=200)
    finetune(config, tmp_path / "run", settings=["training.device=cpu", "training.precision=fp32"], console=console)
    encoder = load_task_inputs(config, lambda text: None).encoder
    chosen = choose_learning_rate(encoder.hidden_size, measure_weights(encoder))
    assert load_config(tmp_path / "run" / "config.yaml").optimizer.learning_rate == chosen != 5e-5
    assert f"learning rate: {chosen:g}, for weights of root mean square" in console.export_text()
