from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig
from maskwright.training.muon import Muon
from maskwright.training.optimizers import build_optimizers

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


def test_adamw_decays_matrices_alone(build_model):
    model = build_model()
    (adamw,) = build_optimizers(model, OptimizerConfig(type="adamw", weight_decay=0.1)).optimizers
    assert isinstance(adamw, torch.optim.AdamW)
    assert names_in(model, adamw, lambda group: group["weight_decay"] == 0.1) == MATRICES
    undecayed = names_in(model, adamw, lambda group: group["weight_decay"] == 0.0)
    assert undecayed == {name for name, _ in model.named_parameters()} - MATRICES


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
    for name, param in ours.named_parameters():
        torch.testing.assert_close(param, params[name], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("type", ["adamw", "muon"])
def test_learning_rate_is_a_factor_of_every_peak(build_model, type):
    config = OptimizerConfig(type=type, learning_rate=1e-3, muon_learning_rate=0.02)
    optimizers = build_optimizers(build_model(), config)
    for _ in range(2):  # the factor is of the peak, not of the rate before
        optimizers.set_learning_rate(2.5e-4, peak=1e-3)
    rates = {round(group["lr"], 12) for group in optimizers.groups}
    assert rates == ({2.5e-4} if type == "adamw" else {2.5e-4, 0.005})


@pytest.mark.parametrize("type", ["adamw", "muon"])
def test_state_round_trip_continues_bit_equal(build_model, type):
    config = OptimizerConfig(type=type, learning_rate=1e-2)
    model = build_model()
    optimizers = build_optimizers(model, config)
    set_gradients(model, 0)
    optimizers.step()
    restored_model = copy.deepcopy(model)
    restored = build_optimizers(restored_model, config)
    restored.load_state_tensors({name: tensor.clone() for name, tensor in optimizers.state_tensors().items()})
    for both in ((model, optimizers), (restored_model, restored)):
        set_gradients(both[0], 1)
        both[1].step()
    for name, param in model.named_parameters():
        assert torch.equal(param, restored_model.get_parameter(name)), name


def test_state_of_another_optimizer_is_refused(build_model):
    model = build_model()
    adamw = build_optimizers(model, OptimizerConfig(type="adamw"))
    set_gradients(model, 0)
    adamw.step()
    with pytest.raises(InputError, match=r"optimizer\.type"):
        build_optimizers(model, OptimizerConfig(type="muon")).load_state_tensors(adamw.state_tensors())
    with pytest.raises(InputError, match=r"no\.such\.layer"):
        adamw.load_state_tensors({"no.such.layer|exp_avg": torch.zeros(1)})
