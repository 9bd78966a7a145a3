"""How deep in a model a weight sits: what freezing and layer-wise learning rates go by."""

from __future__ import annotations

from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder


def freeze_first_layers(encoder: nn.Module, num_frozen: int) -> None:
    """Embeddings and the first layers learn nothing; 0 is the embeddings alone."""
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
    """0 for embeddings, then 1 for the first layer; what is behind the last layer belongs to it. And how many layers.

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
