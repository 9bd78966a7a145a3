from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig
from maskwright.training.optim.muon import Muon
from maskwright.training.optim.optimizers import build_optimizers
from tolerances import assert_rounded

TYPES = get_args(OptimizerConfig.model_fields["type"].annotation)
MATRICES = {
    "encoder.layers.0.attention.qkv.weight",
    "encoder.layers.0.attention.output.weight",
    "encoder.layers.0.up.weight",
    "encoder.layers.0.down.weight",
    "mlm_dense.weight",
}


def names_in(model, optimizer, wanted=lambda group: True):
    names = {param: name for name, param in model.named_parameters()}
    return {names[param] for group in optimizer.param_groups if wanted(group) for param in group["params"]}


def set_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = torch.randn(param.shape, generator=generator)


@pytest.mark.parametrize("type", sorted({*TYPES} - {"muon"}))
def test_matrices_alone_are_decayed(build_model, type):
    model = build_model()
    (optimizer,) = build_optimizers(model, OptimizerConfig(type=type, weight_decay=0.1)).optimizers
    assert names_in(model, optimizer, lambda group: group["weight_decay"] == 0.1) == MATRICES
    undecayed = names_in(model, optimizer, lambda group: group["weight_decay"] == 0.0)
    assert undecayed == {name for name, _ in model.named_parameters()} - MATRICES


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("type", TYPES)
def test_embeddings_have_a_decay_of_their_own(build_model, type, is_tied):
    model = build_model(tie_word_embeddings=is_tied)
    config = OptimizerConfig(type=type, weight_decay=0.1, embedding_decay=0.3)
    optimizer = build_optimizers(model, config).optimizers[-1]
    decayed = names_in(model, optimizer, lambda group: group["weight_decay"] == 0.3)
    expected = {f"encoder.embeddings.{name}.weight" for name in ("word", "position", "token_type")}
    assert decayed == expected | (set() if is_tied else {"mlm_output.weight"})


@pytest.mark.parametrize("type", TYPES)
def test_decay_is_the_only_force_without_gradient_and_every_weight_moves_with_one(build_model, type):
    model = build_model()
    optimizers = build_optimizers(model, OptimizerConfig(type=type, learning_rate=0.01, weight_decay=0.5))
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizers.step()
    changed = {name for name, param in model.named_parameters() if not torch.equal(param, before[name])}
    assert changed == MATRICES
    assert all(param.norm() < before[name].norm() for name, param in model.named_parameters() if name in MATRICES)
    set_gradients(model, 0)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    optimizers.step()
    assert all(not torch.equal(param, before[name]) for name, param in model.named_parameters())


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("adamw", {"betas": (0.9, 0.999), "eps": 1e-8}),
        ("stable_adamw", {"beta1": 0.9, "beta2": 0.98, "epsilon": 1e-6}),
        ("lamb", {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6}),
        ("novograd", {"beta1": 0.95, "beta2": 0.98, "epsilon": 1e-8}),
        ("lion", {"beta1": 0.9, "beta2": 0.99}),
        ("sgd", {"momentum": 0.9}),
        ("muon", {"momentum": 0.95}),
    ],
)
def test_unset_settings_are_the_optimizers_own(build_model, type, expected):
    group = build_optimizers(build_model(), OptimizerConfig(type=type)).groups[0]
    assert {name: group[name] for name in expected} == expected


GIVEN = {"beta1": 0.5, "beta2": 0.6, "epsilon": 0.7, "momentum": 0.8}


@pytest.mark.parametrize(
    ("type", "names"),
    [
        ("stable_adamw", ("beta1", "beta2", "epsilon")),
        ("lamb", ("beta1", "beta2", "epsilon")),
        ("novograd", ("beta1", "beta2", "epsilon")),
        ("lion", ("beta1", "beta2")),
        ("sgd", ("momentum",)),
    ],
)
def test_given_settings_reach_the_optimizer(build_model, type, names):
    for group in build_optimizers(build_model(), OptimizerConfig(type=type, **GIVEN)).groups:
        assert {name: group[name] for name in GIVEN if name in group} == {name: GIVEN[name] for name in names}


def test_given_settings_reach_muon_and_its_adamw(build_model):
    muon, adamw = build_optimizers(build_model(), OptimizerConfig(type="muon", **GIVEN)).optimizers
    assert {group["momentum"] for group in muon.param_groups} == {0.8}
    assert {(group["betas"], group["eps"]) for group in adamw.param_groups} == {((0.5, 0.6), 0.7)}


@pytest.mark.parametrize("type", ["adamw", "muon"])
def test_a_model_without_anything_to_train_is_refused(build_model, type):
    model = build_model().requires_grad_(False)
    with pytest.raises(InputError, match="no parameter to train"):
        build_optimizers(model, OptimizerConfig(type=type))


@pytest.mark.parametrize("is_tied", [True, False])
def test_muon_takes_matrices_and_adamw_the_rest(build_model, is_tied):
    model = build_model(tie_word_embeddings=is_tied)
    config = OptimizerConfig(type="muon", weight_decay=0.1, learning_rate=1e-3, muon_learning_rate=0.03)
    muon, adamw = build_optimizers(model, config).optimizers
    assert isinstance(muon, Muon)
    assert names_in(model, muon) == MATRICES
    assert names_in(model, adamw) == {name for name, _ in model.named_parameters()} - MATRICES
    assert ("mlm_output.weight" in names_in(model, adamw)) is not is_tied
    assert {group["weight_decay"] for group in adamw.param_groups} == {0.0}
    assert {group["weight_decay"] for group in muon.param_groups} == {0.1}
    assert {group["lr"] for group in muon.param_groups} == {0.03}
    stacked = {group["num_stacked"]: len(group["params"]) for group in muon.param_groups}
    assert stacked == {3: 1, 1: 4}


def test_frozen_parameters_are_left_out(build_model):
    model = build_model()
    for param in model.encoder.parameters():
        param.requires_grad = False
    muon, adamw = build_optimizers(model, OptimizerConfig(type="muon")).optimizers
    assert names_in(model, muon) == {"mlm_dense.weight"}
    assert names_in(model, adamw) == {"mlm_dense.bias", "mlm_norm.weight", "mlm_norm.bias", "mlm_output.bias"}


class ForeignEncoder(nn.Module):
    """torch's own layer, whose query, key and value are a bare parameter, used twice."""

    hidden_size = 16

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.shared = nn.Linear(16, 16)
        self.shared_again = nn.Linear(16, 16)
        self.shared_again.weight = self.shared.weight

    def forward(self, input_ids):
        return {"last_hidden_state": self.shared_again(self.shared(self.layer(self.embedding(input_ids))))}


def test_matrices_of_foreign_encoders_are_found_once():
    model = MaskedLanguageModel(ForeignEncoder(), 60, mask_token_id=4)
    muon, _ = build_optimizers(model, OptimizerConfig(type="muon")).optimizers
    assert names_in(model, muon, lambda group: group["num_stacked"] == 3) == {
        "encoder.layer.self_attn.in_proj_weight",
    }
    assert "encoder.shared.weight" in names_in(model, muon)
    params = [param for group in muon.param_groups for param in group["params"]]
    assert len(params) == len(set(params))


def test_adamw_equals_torch_on_the_same_groups(build_model):
    ours, theirs = build_model(), build_model()
    config = OptimizerConfig(learning_rate=1e-2, weight_decay=0.1, beta1=0.8, beta2=0.95, epsilon=1e-6)
    optimizers = build_optimizers(ours, config)
    params = dict(theirs.named_parameters())
    reference = torch.optim.AdamW(
        [
            {"params": [params[name] for name in MATRICES], "weight_decay": 0.1},
            {"params": [param for name, param in params.items() if name not in MATRICES], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=(0.8, 0.95),
        eps=1e-6,
    )
    for step in range(3):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizers.step()
        reference.step()
    num_operations = 3 * 10  # ten to a step
    assert_rounded(dict(ours.named_parameters()), params, num_operations)


@pytest.mark.parametrize("type", TYPES)
def test_learning_rate_is_a_factor_of_every_peak(build_model, type):
    config = OptimizerConfig(type=type, learning_rate=1e-3, muon_learning_rate=0.02)
    optimizers = build_optimizers(build_model(), config)
    for _ in range(2):  # the factor is of the peak, not of the rate before
        optimizers.set_learning_rate(2.5e-4, peak=1e-3)
    rates = {round(group["lr"], 12) for group in optimizers.groups}
    assert rates == ({2.5e-4, 0.005} if type == "muon" else {2.5e-4})
    optimizers.set_learning_rate(4e-3, peak=1e-3)
    assert max(group["lr"] for group in optimizers.groups) == pytest.approx(0.08 if type == "muon" else 4e-3)


@pytest.mark.parametrize("type", TYPES)
def test_state_round_trip_continues_bit_equal(build_model, type):
    config = OptimizerConfig(type=type, learning_rate=1e-2)
    model = build_model()
    optimizers = build_optimizers(model, config)
    for seed in (0, 1):
        set_gradients(model, seed)
        optimizers.step()
    restored_model = copy.deepcopy(model)
    restored = build_optimizers(restored_model, config)
    restored.load_state_tensors({name: tensor.clone() for name, tensor in optimizers.state_tensors().items()})
    for both in ((model, optimizers), (restored_model, restored)):
        set_gradients(both[0], 2)
        both[1].step()
    for name, param in model.named_parameters():
        assert torch.equal(param, restored_model.get_parameter(name)), name
    state, restored_state = optimizers.state_tensors(), restored.state_tensors()
    assert list(state) == list(restored_state)
    assert all(torch.equal(value, restored_state[name]) for name, value in state.items())


@pytest.mark.parametrize("type", TYPES)
def test_state_is_listed_in_the_order_of_the_model(build_model, type):
    """Processes that hold parts of the weights gather them one by one, so all need the same order."""
    model = build_model()
    optimizers = build_optimizers(model, OptimizerConfig(type=type))
    set_gradients(model, 0)
    optimizers.step()
    names = dict.fromkeys(key.split("|")[0] for key in optimizers.state_tensors())
    assert list(names) == [name for name, _ in model.named_parameters()]


def test_state_of_another_optimizer_is_refused(build_model):
    model = build_model()
    adamw = build_optimizers(model, OptimizerConfig(type="adamw"))
    set_gradients(model, 0)
    adamw.step()
    with pytest.raises(InputError, match=r"optimizer\.type"):
        build_optimizers(model, OptimizerConfig(type="muon")).load_state_tensors(adamw.state_tensors())
    with pytest.raises(InputError, match=r"no\.such\.layer"):
        adamw.load_state_tensors({"no.such.layer|exp_avg": torch.zeros(1)})
