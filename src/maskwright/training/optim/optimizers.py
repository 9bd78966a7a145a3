"""Optimizers over the right parameters, with state that is stored under parameter names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.layers import StackedLinear
from maskwright.sections.training import OptimizerConfig
from maskwright.training.distributed.world import World, gather_whole, read_like
from maskwright.training.optim.algorithms import FunctionalOptimizer, FusedAdamW, Lamb, Lion, NovoGrad, Sgd, StableAdamW
from maskwright.training.optim.muon import Muon

AnyOptimizer = FusedAdamW | Muon | FunctionalOptimizer


class OptimizerSet:
    """One or two optimizers that step together; learning rates are set as a factor of each group's peak."""

    def __init__(self, optimizers: Sequence[AnyOptimizer], model: nn.Module) -> None:
        self.optimizers = list(optimizers)
        self.groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._peaks = [float(group["lr"]) for group in self.groups]
        self._names: dict[Tensor, str] = {param: name for name, param in model.named_parameters()}

    def set_learning_rate(self, learning_rate: float, peak: float) -> None:
        """Scale every group by `learning_rate / peak`; the factor may exceed 1."""
        for group, group_peak in zip(self.groups, self._peaks, strict=True):
            group["lr"] = group_peak * learning_rate / peak

    def step(self, skip: Tensor | None = None) -> None:
        """Step, unless `skip` is 1: a float tensor without dimensions on the parameters' device.

        A step that is skipped leaves all weights and state bit-identical, whatever the gradients hold, and nothing
        waits for the device.
        """
        for optimizer in self.optimizers:
            optimizer.step(skip=skip)

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All state as whole tensors named `parameter|quantity`; all processes must call this together."""
        return {name: gather_whole(value) for name, value in self.own_state_tensors().items()}

    def own_state_tensors(self) -> dict[str, Tensor]:
        """As `state_tensors`, with sharded tensors as they are."""
        owners = self._find_owners()
        # The model's order is the same in all processes, which may have to gather the same tensor at a time.
        return {
            f"{name}|{quantity}": value
            for param, name in self._names.items()
            if param in owners and param in owners[param].state
            for quantity, value in sorted(owners[param].state[param].items())
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load stored state; it must come from the same kind of optimizer over the same parameters."""
        params = {name: param for param, name in self._names.items()}
        owners = self._find_owners()
        for key in tensors:
            name, quantity = key.split("|")
            param = params.get(name)
            owner = None if param is None else owners.get(param)
            if param is None or owner is None or quantity not in owner.quantities:
                raise InputError(
                    f"the stored optimizer state has '{quantity}' for '{name}', which this run's optimizer has no use"
                    " for; continue with the optimizer.type and the model the run was started with"
                )
            owner.state[param][quantity] = read_like(tensors, key, param)

    def _find_owners(self) -> dict[Tensor, AnyOptimizer]:
        return {
            param: optimizer
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        }


def build_optimizers(model: nn.Module, config: OptimizerConfig, world: World | None = None) -> OptimizerSet:
    """The configured optimizer; Muon takes the matrices inside the model, and AdamW the rest.

    Matrices and embeddings each have a weight decay; norms and biases have none. A model may scale the learning rates
    of its parameters with `compute_rate_factors()`. The processes of `world` step together and share Muon's work.
    """
    matrices, tables = find_matrices(model), _find_tables(model)
    factors = _find_rate_factors(model)
    in_matrices = dict.fromkeys(param for params in matrices.values() for param in params)
    by_decay: dict[float, list[Tensor]] = defaultdict(list)
    for param in model.parameters():
        if param.requires_grad and param not in in_matrices:
            by_decay[config.embedding_decay if param in tables else 0.0].append(param)
    if config.type != "muon":
        by_decay[config.weight_decay] += in_matrices
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay} for decay, params in by_decay.items() if params
    ]
    optimizers: list[AnyOptimizer] = []
    if config.type == "muon" and matrices:
        optimizers.append(_build_muon(matrices, config, factors, world))
    if groups:
        groups = _split_by_rate(groups, config.learning_rate, factors)
        optimizers.append(_build_for_groups(groups, config))
    if not optimizers:
        raise InputError("the model has no parameter to train; leave requires_grad on where it should learn")
    return OptimizerSet(optimizers, model)


def _find_rate_factors(model: nn.Module) -> Mapping[Tensor, float]:
    compute: Any = getattr(model, "compute_rate_factors", None)
    return compute() if callable(compute) else {}


def _split_by_rate(
    groups: Sequence[dict[str, Any]], peak: float, factors: Mapping[Tensor, float]
) -> list[dict[str, Any]]:
    """Groups of parameters that share a learning rate; a parameter without a factor has the peak rate."""
    split = []
    for group in groups:
        by_factor: dict[float, list[Tensor]] = defaultdict(list)
        for param in group["params"]:
            by_factor[factors.get(param, 1.0)].append(param)
        split += [{**group, "params": params, "lr": peak * factor} for factor, params in by_factor.items()]
    return split


def _build_muon(
    matrices: dict[int, list[Tensor]],
    config: OptimizerConfig,
    factors: Mapping[Tensor, float],
    world: World | None,
) -> Muon:
    groups = [{"params": params, "num_stacked": num_stacked} for num_stacked, params in matrices.items()]
    groups = _split_by_rate(groups, config.muon_learning_rate, factors)
    given = _keep_given(momentum=config.momentum)
    return Muon(groups, lr=config.muon_learning_rate, weight_decay=config.weight_decay, world=world, **given)


def _build_for_groups(groups: list[dict[str, Any]], config: OptimizerConfig) -> AnyOptimizer:
    """The optimizer of all parameters, or AdamW for the parameters that are not Muon's."""
    rate = config.learning_rate
    betas = _keep_given(beta1=config.beta1, beta2=config.beta2)
    epsilon = _keep_given(epsilon=config.epsilon)
    match config.type:
        case "adamw" | "muon":
            return FusedAdamW(groups, rate, **betas, **epsilon)
        case "stable_adamw":
            return StableAdamW(groups, rate, **betas, **epsilon)
        case "lamb":
            return Lamb(groups, rate, **betas, **epsilon)
        case "novograd":
            return NovoGrad(groups, rate, **betas, **epsilon)
        case "lion":
            return Lion(groups, rate, **betas)
        case "sgd":
            return Sgd(groups, rate, **_keep_given(momentum=config.momentum))


def _keep_given(**settings: float | None) -> dict[str, Any]:
    """The options that are set; for the others the optimizer has its own default."""
    return {name: value for name, value in settings.items() if value is not None}


def find_matrices(model: nn.Module) -> dict[int, list[Tensor]]:
    """Weights of linear layers by how many projections they stack, without embedding tables and the output matrix."""
    seen = _find_tables(model)
    matrices: dict[int, list[Tensor]] = defaultdict(list)
    for module in model.modules():
        weight, num_stacked = _find_matrix(module)
        if weight is None or weight in seen or not weight.requires_grad:
            continue
        if weight.shape[0] == 1:  # a single output has no directions to balance
            continue
        seen.add(weight)
        matrices[num_stacked].append(weight)
    return matrices


def _find_tables(model: nn.Module) -> set[Tensor]:
    """Embedding tables, and the output matrix if it is not tied."""
    embeddings = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    return embeddings | {table for table in getattr(model, "output_tables", ()) if table.ndim > 1}


def _find_matrix(module: nn.Module) -> tuple[Tensor | None, int]:
    """A layer's own weight matrix, and how many projections it stacks."""
    if isinstance(module, nn.MultiheadAttention):
        return module.in_proj_weight, 3
    if isinstance(module, nn.Linear):
        return module.weight, module.num_stacked if isinstance(module, StackedLinear) else 1
    return None, 1
