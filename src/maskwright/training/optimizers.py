"""Optimizers over the right parameters, with state that is stored under parameter names."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.layers import StackedLinear
from maskwright.sections.training import OptimizerConfig
from maskwright.training.muon import Muon

_QUANTITIES: dict[type[torch.optim.Optimizer], set[str]] = {
    Muon: {"momentum_buffer"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
}


class OptimizerSet:
    """One or two optimizers that step together; learning rates are set as a factor of each group's peak."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], model: nn.Module) -> None:
        self.optimizers = optimizers
        self.groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._peaks = [float(group["lr"]) for group in self.groups]
        self._names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}

    def set_learning_rate(self, learning_rate: float, peak: float) -> None:
        """Scale every group by `learning_rate / peak`."""
        for group, group_peak in zip(self.groups, self._peaks, strict=True):
            group["lr"] = group_peak * learning_rate / peak

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All state as tensors named `parameter|quantity`."""
        tensors = {}
        for optimizer in self.optimizers:
            for param, state in optimizer.state.items():
                for quantity, value in state.items():
                    tensors[f"{self._names[param]}|{quantity}"] = torch.as_tensor(value)
        return tensors

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put stored state in place; it must come from the same kind of optimizer over the same parameters."""
        params = {name: param for param, name in self._names.items()}
        owners = {
            param: optimizer
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        }
        for key, value in tensors.items():
            name, quantity = key.split("|")
            param = params.get(name)
            owner = None if param is None else owners.get(param)
            if param is None or owner is None or quantity not in _QUANTITIES[type(owner)]:
                raise InputError(
                    f"the stored optimizer state has '{quantity}' for '{name}', which this run's optimizer has no use"
                    " for; continue with the optimizer.type and the model the run was started with"
                )
            owner.state[param][quantity] = value.to(param.device)


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> OptimizerSet:
    """AdamW, or Muon for the matrices inside the model and AdamW for its embeddings, norms and biases."""
    matrices = find_matrices(model)
    in_matrices = dict.fromkeys(param for params in matrices.values() for param in params)
    others = [param for param in model.parameters() if param.requires_grad and param not in in_matrices]
    optimizers: list[torch.optim.Optimizer] = []
    adamw_groups = [{"params": others, "weight_decay": 0.0}]
    if config.type == "muon":
        muon_groups: list[dict[str, object]] = [
            {"params": params, "num_stacked": num_stacked} for num_stacked, params in matrices.items()
        ]
        optimizers.append(Muon(muon_groups, lr=config.muon_learning_rate, weight_decay=config.weight_decay))
    else:
        adamw_groups.append({"params": list(in_matrices), "weight_decay": config.weight_decay})
    optimizers.append(
        torch.optim.AdamW(
            [group for group in adamw_groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )
    )
    return OptimizerSet(optimizers, model)


def find_matrices(model: nn.Module) -> dict[int, list[Tensor]]:
    """Weights of linear layers by how many projections they stack; tables of the vocabulary are not among them."""
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    vocabulary_output = getattr(model, "mlm_output", None)
    seen = set(embeddings)
    matrices: dict[int, list[Tensor]] = defaultdict(list)
    for module in model.modules():
        weight, num_stacked = _find_matrix(module)
        if weight is None or module is vocabulary_output or weight in seen or not weight.requires_grad:
            continue
        seen.add(weight)
        matrices[num_stacked].append(weight)
    return matrices


def _find_matrix(module: nn.Module) -> tuple[Tensor | None, int]:
    """A layer's own weight matrix, and how many projections it stacks."""
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight, 3
    if isinstance(module, nn.Linear):
        return module.weight, module.num_stacked if isinstance(module, StackedLinear) else 1
    return None, 1
