"""Layers that learn at their own rate, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from maskwright.errors import InputError
from maskwright.models.albert import ALBERT
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.sections.training import OptimizerConfig
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.sequence_head import build_sequence_head
from maskwright.training.optim.optimizers import build_optimizers

SHAPE = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 30}


def build_model(kind: type = BERT, **settings: float) -> TaskModel:
    torch.manual_seed(0)
    encoder = kind.from_variant("tiny", **SHAPE)  # type: ignore[attr-defined]
    task = Classification(["a", "b", "c"])
    return TaskModel(encoder, build_sequence_head(encoder, task.num_outputs, {}), task, **settings)


def find_rates(model: TaskModel, config: OptimizerConfig) -> dict[str, float]:
    groups = build_optimizers(model, config).groups
    rates = {param: group["lr"] for group in groups for param in group["params"]}
    return {name: rates[param] for name, param in model.named_parameters() if param in rates}


@pytest.mark.parametrize("kind", [BERT, ModernBERT])
def test_each_layer_learns_slower_than_the_next(kind: type) -> None:
    rates = find_rates(build_model(kind, layer_decay=0.5), OptimizerConfig(learning_rate=1.0))
    expected = {"encoder.layers.0.": 0.125, "encoder.layers.1.": 0.25, "encoder.layers.2.": 0.5, "task_head.": 1.0}
    expected |= {"encoder.embedding": 0.0625, "encoder.word.": 0.0625, "encoder.final_norm.": 0.5}
    for name, rate in rates.items():
        (wanted,) = (value for prefix, value in expected.items() if name.startswith(prefix))
        assert rate == wanted, name


def test_the_schedule_scales_all_rates_alike() -> None:
    optimizers = build_optimizers(build_model(layer_decay=0.5), OptimizerConfig(learning_rate=1.0))
    before = [group["lr"] for group in optimizers.groups]
    optimizers.set_learning_rate(0.1, 1.0)
    assert [group["lr"] for group in optimizers.groups] == pytest.approx([0.1 * rate for rate in before])


def test_muon_decays_by_layer_as_well() -> None:
    model = build_model(layer_decay=0.5)
    rates = find_rates(model, OptimizerConfig(type="muon", learning_rate=1.0, muon_learning_rate=8.0))
    assert rates["encoder.layers.0.up.weight"] == 1.0
    assert rates["encoder.layers.2.up.weight"] == 4.0
    assert rates["encoder.layers.2.up.bias"] == 0.5


def test_without_decay_there_is_one_rate_and_no_further_group() -> None:
    plain = build_optimizers(build_model(), OptimizerConfig(learning_rate=0.25))
    assert len(plain.groups) == 2
    assert {group["lr"] for group in plain.groups} == {0.25}


def test_state_is_stored_by_name_whatever_the_groups(tmp_path: Path) -> None:
    model, other = build_model(layer_decay=0.5), build_model()
    first = build_optimizers(model, OptimizerConfig())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    first.step()
    second = build_optimizers(other, OptimizerConfig())
    second.load_state_tensors(first.state_tensors())
    assert second.state_tensors().keys() == first.state_tensors().keys()


@pytest.mark.parametrize("num_frozen", [0, 2, 3])
def test_frozen_layers_stay_as_they_are(num_frozen: int) -> None:
    model = build_model()
    model.freeze_layers(num_frozen)
    trained = set(find_rates(model, OptimizerConfig()))
    layers = {name.split(".")[2] for name in trained if name.startswith("encoder.layers.")}
    assert layers == {str(number) for number in range(num_frozen, 3)}
    assert not any(name.startswith("encoder.embeddings") for name in trained)
    assert any(name.startswith("task_head") for name in trained)


def test_more_layers_than_there_are_cannot_be_frozen() -> None:
    with pytest.raises(InputError, match="4 layers are to be frozen, the encoder has 3"):
        build_model().freeze_layers(4)


def test_layers_that_share_weights_have_no_rates_of_their_own() -> None:
    model = build_model(ALBERT, layer_decay=0.5)
    with pytest.raises(InputError, match="ALBERT share their weights"):
        model.compute_rate_factors()
    with pytest.raises(InputError, match="ALBERT share their weights"):
        model.freeze_layers(1)
