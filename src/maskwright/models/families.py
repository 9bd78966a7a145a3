"""How each native family is written down by Hugging Face: the names of its weights and of its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.modernbert import ModernBERT

State = dict[str, Tensor]
_LAYER_NAME = re.compile(r"layers\.(\d+)\.(.+)")
_OLD_NORM_NAMES = {"gamma": "weight", "beta": "bias"}


@dataclass(frozen=True)
class Family:
    """One architecture's layout. Module names map to one name of theirs, or to several that we keep stacked."""

    model_type: str
    encoder_class: type[PackedEncoder]
    architectures: tuple[str, str]
    """Of the encoder alone, and with a masked-language-model head."""
    prefix: str
    """Before the encoder's weights in a model with a head."""
    layer_prefix: str
    modules: Mapping[str, str]
    layer_modules: Mapping[str, tuple[str, ...]]
    head_modules: Mapping[str, str]
    """Modules of the prediction head; the output's bias goes by `output_bias`."""
    output_bias: str
    own_settings: tuple[str, ...]
    """Settings that only we have; they are kept apart in config.json."""
    fixed_settings: Mapping[str, Any]
    """Settings of theirs that we have at one value only."""

    def their_names(self, name: str) -> list[str]:
        """Their names for one of the encoder's weights; several when ours is theirs stacked."""
        module, kind = name.rsplit(".", 1)
        match = _LAYER_NAME.fullmatch(module)
        if match is None:
            return [f"{self.modules[module]}.{kind}"]
        layer, part = match.groups()
        return [f"{self.layer_prefix}.{layer}.{theirs}.{kind}" for theirs in self.layer_modules[part]]

    def to_theirs(self, state: Mapping[str, Tensor]) -> State:
        renamed: State = {}
        for name, tensor in state.items():
            names = self.their_names(name)
            renamed |= dict(zip(names, tensor.chunk(len(names)), strict=True))
        return renamed

    def from_theirs(self, weights: Mapping[str, Tensor], names: list[str]) -> State:
        """The weights we have names for; what is absent is left out."""
        weights = self._normalise(weights)
        found: State = {}
        for name in names:
            theirs = self.their_names(name)
            if all(their_name in weights for their_name in theirs):
                found[name] = torch.cat([weights[their_name] for their_name in theirs])
        return found

    def read_config(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """The encoder's configuration; settings we do not know are left aside, those of a wrong type refused."""
        for name, value in self.fixed_settings.items():
            if config.get(name, value) != value:
                raise InputError(f"'{name}' is {config[name]!r}; only {value!r} is supported")
        values = {**_flatten_rope(config), **_read_layer_types(config), **own}
        known = {field.name: field.default for field in fields(self.encoder_class.config_class)}
        chosen = {name: values[name] for name in known if name in values}
        for name, value in chosen.items():
            _check_type(name, value, known[name])
        return self.encoder_class.config_class(**chosen)

    def split_config(self, config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings under their names, and those that only we have."""
        values = asdict(config)
        own = {name: values.pop(name) for name in self.own_settings}
        return values, own

    def _normalise(self, weights: Mapping[str, Tensor]) -> State:
        """Undo what differs between checkpoints: the encoder's prefix and the first release's names in norms."""
        normalised: State = {}
        for name, tensor in weights.items():
            stem, _, kind = name.removeprefix(f"{self.prefix}.").rpartition(".")
            normalised[f"{stem}.{_OLD_NORM_NAMES.get(kind, kind)}"] = tensor
        return normalised


def _check_type(name: str, value: Any, default: Any) -> None:
    expected: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, expected) or isinstance(value, bool) != isinstance(default, bool):
        raise InputError(f"'{name}' is {value!r}; expected a value such as {default!r}")


def _flatten_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Newer files nest the rotary bases by kind of layer; older ones and ours have them flat."""
    rope = config.get("rope_parameters")
    flat = dict(config)
    for kind, name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        settings = rope.get(kind) if isinstance(rope, dict) else None
        if isinstance(settings, dict) and "rope_theta" in settings:
            flat[name] = settings["rope_theta"]
    return flat


def _read_layer_types(config: Mapping[str, Any]) -> dict[str, int]:
    """Newer files list the kind of every layer where older ones say how many are between two global ones."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        return {}
    is_global = [kind == "full_attention" for kind in kinds]
    for distance in range(1, len(kinds) + 1):
        if is_global == [layer % distance == 0 for layer in range(len(kinds))]:
            return {"global_attn_every_n_layers": distance}
    raise InputError("'layer_types' is irregular; only a global layer after every n-th is supported")


BERT_FAMILY = Family(
    model_type="bert",
    encoder_class=BERT,
    architectures=("BertModel", "BertForMaskedLM"),
    prefix="bert",
    layer_prefix="encoder.layer",
    modules={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.token_type": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
    },
    layer_modules={
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "feed_forward_norm": ("output.LayerNorm",),
    },
    head_modules={
        "mlm_dense": "cls.predictions.transform.dense",
        "mlm_norm": "cls.predictions.transform.LayerNorm",
        "mlm_output": "cls.predictions.decoder",
    },
    output_bias="cls.predictions.bias",
    own_settings=("normalization_type", "use_stochastic_depth", "stochastic_depth_rate", "residual_init"),
    fixed_settings={"position_embedding_type": "absolute", "is_decoder": False},
)

MODERNBERT_FAMILY = Family(
    model_type="modernbert",
    encoder_class=ModernBERT,
    architectures=("ModernBertModel", "ModernBertForMaskedLM"),
    prefix="model",
    layer_prefix="layers",
    modules={
        "word": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "final_norm": "final_norm",
    },
    layer_modules={
        "attention_norm": ("attn_norm",),
        "attention.qkv": ("attn.Wqkv",),
        "attention.output": ("attn.Wo",),
        "feed_forward_norm": ("mlp_norm",),
        "up": ("mlp.Wi",),
        "down": ("mlp.Wo",),
    },
    head_modules={"mlm_dense": "head.dense", "mlm_norm": "head.norm", "mlm_output": "decoder"},
    output_bias="decoder.bias",
    own_settings=("residual_init",),
    fixed_settings={"attention_bias": False, "mlp_bias": False, "decoder_bias": True},
)

FAMILIES = {family.model_type: family for family in (BERT_FAMILY, MODERNBERT_FAMILY)}


def family_of(encoder: PackedEncoder) -> Family:
    return next(family for family in FAMILIES.values() if isinstance(encoder, family.encoder_class))
