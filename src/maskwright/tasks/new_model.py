"""Build a model for fine-tuning: a pre-trained encoder, a new head, frozen layers and learning rates."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder, build_encoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import read_model_folder
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder
from maskwright.models.transformers_model import is_foreign
from maskwright.tasks.foreign import build_foreign, load_foreign_encoder
from maskwright.tasks.heads import TaskHead
from maskwright.tasks.kinds import TaskKind
from maskwright.tasks.task import Task

_BERT_BASE_RATE, _BERT_BASE_WIDTH = 5e-5, 768
_LARGEST_USUAL_SIZE = 0.06
"""Of weights: all-MiniLM-L6-v2 has as much, encoders that Muon trained two to three times as much."""

_LORA_FACTOR = 10.0

Pretrained = tuple[TunedEncoder, dict[str, Any], State]
"""An encoder to be fine-tuned, with the config.json and all weights it came with."""


def load_pretrained(folder: Path) -> Pretrained:
    config, weights = read_model_folder(folder)
    if is_foreign(config):
        return load_foreign_encoder(config, weights, folder), config, weights
    encoder = build_encoder(config, folder, weights)
    encoder.load_state_dict(encoder.family.from_theirs(weights, encoder.state_dict()))
    return encoder, config, weights


def build_new(
    kind: TaskKind, task: Task, encoder: TunedEncoder, config: Mapping[str, Any], weights: State, folder: Path
) -> tuple[TunedEncoder, TaskHead]:
    """A copy of the encoder with a new head, which reuses the pre-trained part of a head.

    `config` is the encoder's config.json, with the task's labels.
    """
    if isinstance(encoder, TransformersEncoder):
        own = {name: tensor.clone() for name, tensor in weights.items()}  # transformers takes tensors as they are
        return build_foreign(kind, task.num_outputs, config, own, folder, is_new=True)
    encoder = copy.deepcopy(encoder)
    task_head = kind.build_head(encoder, task.num_outputs, config)
    task_head.has_adopted = adopt_dense(task_head, encoder, weights)
    if task_head.needs_pretrained and not task_head.has_adopted:
        raise InputError(
            f"{folder} holds no masked-language-model head, by which tokens are weighed; train one with maskwright"
            " adapt, or give a model that has one"
        )
    return encoder, task_head


def adopt_dense(task_head: TaskHead, encoder: PackedEncoder, weights: Mapping[str, Tensor]) -> bool:
    """Copy the pre-trained part of the head, and return whether there was one.

    That is BERT's pooler, or the transform of ModernBERT's predictions; of a sparse retriever all of them. A last layer
    for labels stays new, as those differ from task to task.
    """
    family = encoder.family
    given = family.normalise(weights)
    state, adopted = task_head.state_dict(), task_head.list_adopted()
    names = {
        ours: family.normalise_name(theirs) for ours, theirs in task_head.name_weights().items() if ours in adopted
    }
    if not names:
        return False
    if not all(theirs in given and given[theirs].shape == state[ours].shape for ours, theirs in names.items()):
        return False
    task_head.load_state_dict({**state, **{ours: given[theirs] for ours, theirs in names.items()}})
    return True


def freeze_first_layers(encoder: nn.Module, num_frozen: int) -> None:
    """Freeze the embeddings and the first layers; 0 freezes the embeddings only."""
    depths, num_layers = _find_depths(encoder, "freezing some")
    if num_frozen > num_layers:
        raise InputError(f"{num_frozen} layers are to be frozen, the encoder has {num_layers}; freeze at most those")
    for param, depth in depths.items():
        if depth <= num_frozen:
            param.requires_grad_(False)


def compute_rate_factors(model: nn.Module, encoder: nn.Module, decay: float) -> dict[Tensor, float]:
    """1 for the head, `decay` for the last layer, its square for the one before (Howard and Ruder 2018, section 3.2).

    Empty without a decay.
    """
    if decay == 1.0:
        return {}
    depths, num_layers = _find_depths(encoder, "a learning rate for each")
    factors: dict[Tensor, float] = dict.fromkeys(model.parameters(), 1.0)
    return factors | {param: decay ** (num_layers + 1 - depth) for param, depth in depths.items()}


def _find_depths(encoder: nn.Module, wish: str) -> tuple[dict[nn.Parameter, int], int]:
    """The depth of each weight, 0 for embeddings and 1 for the first layer, with weights after the last layer counted
    to it, and the number of layers.

    Layers are lists of as many modules as the encoder has layers, each with weights of its own. What is made before
    them embeds the tokens.
    """
    if not isinstance(encoder, TunedEncoder):
        raise InputError(f"the layers of {type(encoder).__name__} are not known; {wish} is not possible")
    module: nn.Module = encoder.base_model if isinstance(encoder, TransformersEncoder) else encoder
    num_layers = int(encoder.config.num_hidden_layers)
    parts = dict(module.named_modules())
    lists = [
        f"{name}." for name, part in parts.items() if isinstance(part, nn.ModuleList) and len(set(part)) == num_layers
    ]
    tables = {param for part in parts.values() if isinstance(part, nn.Embedding) for param in part.parameters()}
    depths, behind = {}, False
    for name, param in module.named_parameters():
        found = next((prefix for prefix in lists if name.startswith(prefix)), None)
        if found is not None:
            behind = True
            depths[param] = 1 + int(name.removeprefix(found).split(".")[0])
        else:
            depths[param] = num_layers if behind and param not in tables else 0
    if not behind:
        raise InputError(
            f"the layers of {type(module).__name__} share their weights or are not in one list; {wish} is not possible"
        )
    return depths, num_layers


def choose_learning_rate(width: int, weights_size: float, has_adapters: bool = False) -> float:
    """The usual rate of BERT-base at its width, smaller for wider encoders, and larger for larger weights and LoRA."""
    rate = _BERT_BASE_RATE * _BERT_BASE_WIDTH / width * (_LORA_FACTOR if has_adapters else 1.0)
    return float(f"{rate * max(1.0, weights_size / _LARGEST_USUAL_SIZE):.1e}")


@torch.no_grad()
def measure_weights(encoder: nn.Module) -> float:
    """The root mean square over its matrices, without embeddings; 0 where it has no `nn.Linear`."""
    weights = [module.weight for module in encoder.modules() if isinstance(module, nn.Linear)]
    total = sum(float(weight.double().square().sum()) for weight in weights)
    return math.sqrt(total / max(1, sum(weight.numel() for weight in weights)))
