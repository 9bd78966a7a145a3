"""How deep in a model a weight sits: what freezing and layer-wise learning rates go by."""

from __future__ import annotations

import re

from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder

_LAYER = re.compile(r"layers\.(\d+)\.")
_BEHIND_LAYERS = "final_norm."


def find_depth(name: str, num_layers: int) -> int:
    """0 for an encoder's embeddings, then 1 for its first layer; what is behind the last one belongs to it."""
    match = _LAYER.match(name)
    if match is not None:
        return int(match.group(1)) + 1
    return num_layers if name.startswith(_BEHIND_LAYERS) else 0


def freeze_first_layers(encoder: nn.Module, num_frozen: int) -> None:
    """Embeddings and the first layers learn nothing; 0 is the embeddings alone."""
    num_layers = _count_layers(encoder, "freezing some")
    if num_frozen > num_layers:
        raise InputError(f"{num_frozen} layers are to be frozen, the encoder has {num_layers}; freeze at most those")
    for name, param in encoder.named_parameters():
        if find_depth(name, num_layers) <= num_frozen:
            param.requires_grad_(False)


def compute_rate_factors(model: nn.Module, encoder: nn.Module, decay: float) -> dict[Tensor, float]:
    """1 for the head, `decay` for the last layer, its square for the one before (Howard and Ruder 2018, section 3.2).

    Empty without a decay.
    """
    if decay == 1.0:
        return {}
    num_layers = _count_layers(encoder, "a learning rate for each")
    factors: dict[Tensor, float] = dict.fromkeys(model.parameters(), 1.0)
    for name, param in encoder.named_parameters():
        factors[param] = decay ** (num_layers + 1 - find_depth(name, num_layers))
    return factors


def _count_layers(encoder: nn.Module, wish: str) -> int:
    """Layers with weights of their own; families that share them have no first and last."""
    layers = getattr(encoder, "layers", None)
    if not isinstance(encoder, PackedEncoder):
        raise InputError(f"the layers of {type(encoder).__name__} are not known; {wish} is not possible")
    num_layers = int(encoder.config.num_hidden_layers)
    if not isinstance(layers, nn.ModuleList) or len(layers) != num_layers:
        raise InputError(f"the layers of {type(encoder).__name__} share their weights; {wish} is not possible")
    return num_layers
