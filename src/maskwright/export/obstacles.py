"""Why Hugging Face's layout cannot hold a model: a clause for each reason."""

from __future__ import annotations

from torch import nn

from maskwright.models.encoder import PackedEncoder, describe_encoder
from maskwright.models.files.model_folder import OWN_TYPE_PREFIX
from maskwright.models.transformers_encoder import TransformersEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel

_IS_CAUSAL = "it continues text (training.mode=clm), where a token sees what comes before it; theirs sees both sides"


def find_obstacles(model: MaskedLanguageModel) -> list[str]:
    """What keeps the whole model from being read as theirs; nothing if it can be."""
    if model.mlm_head is not None:
        return []
    obstacles = find_pooling_obstacles(model)
    encoder = model.encoder
    if not isinstance(encoder, PackedEncoder):
        return obstacles
    if model.predicts_next and model.mode != "clm":
        obstacles.append(
            f"it answers a masked token one place before it (training.mode={model.mode}), theirs in its own place"
        )
    return [*obstacles, *_find_head_obstacles(model, encoder)]


def find_pooling_obstacles(model: MaskedLanguageModel) -> list[str]:
    """What keeps the encoder alone from being read as theirs, whatever the prediction head."""
    if model.mlm_head is not None:
        return [
            f"{type(model.encoder).__name__} is read through transformers; export it with --to hf, and"
            " sentence-transformers adds mean pooling to that folder by itself"
        ]
    return [*find_encoder_obstacles(model.encoder), *([_IS_CAUSAL] if model.mode == "clm" else [])]


def find_encoder_obstacles(encoder: nn.Module) -> list[str]:
    """What keeps the encoder from being read as theirs, whatever stands on it."""
    if isinstance(encoder, TransformersEncoder):
        return []
    if not isinstance(encoder, PackedEncoder):
        return [f"{type(encoder).__name__} is an encoder of your own, they have no architecture for it"]
    if not encoder.family.is_in_transformers:
        return [
            f"transformers has no {type(encoder).__name__}; a run's own folder has the names of the published models"
        ]
    theirs = f"Hugging Face's {type(encoder).__name__}"
    obstacles = []
    if getattr(encoder.config, "normalization_type", "layer_norm") != "layer_norm":
        obstacles.append(f"its norms are {encoder.config.normalization_type}, {theirs} has layer_norm only")
    elif describe_encoder(encoder, with_head=False)["model_type"].startswith(OWN_TYPE_PREFIX):
        obstacles.append(f"its configuration sets what is the same in every {theirs}")
    if getattr(encoder.config, "use_stochastic_depth", False):
        obstacles.append(
            f"its training skips layers at random (use_stochastic_depth), {theirs} would train without; to export it"
            " for use alone, set that to false in its config.json"
        )
    return obstacles


def _find_head_obstacles(model: MaskedLanguageModel, encoder: PackedEncoder) -> list[str]:
    obstacles = []
    if model.vocab_size != encoder.vocab_size:
        obstacles.append(
            f"it predicts {model.vocab_size} tokens and embeds {encoder.vocab_size}, theirs has one vocab_size for both"
        )
    if not encoder.has_mlm_transform:
        return obstacles
    if model.layer_norm_eps != encoder.norm_eps:
        obstacles.append(
            f"the norm of its prediction head has eps {model.layer_norm_eps:g} and its encoder's {encoder.norm_eps:g},"
            " theirs has one for both"
        )
    activation = encoder.head_activation
    if model.mlm_head_activation != activation and encoder.family.head_activation_setting is None:
        obstacles.append(
            f"the activation of its prediction head is {model.mlm_head_activation}, theirs would be {activation}"
        )
    return obstacles
