"""ModernBERT (Warner et al. 2024), written for packed rows.

Rotary positions, gated feed-forward, norms before each branch, and global attention only in every n-th layer.
B rows, S row length, D width, K head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import Documents
from maskwright.errors import InputError
from maskwright.models.attention import AttentionMask, Rotation, SelfAttention
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import Family, TaskHeadLayout
from maskwright.models.layers import Dropout, LayerNorm, Linear, LinearAfterGate, ResidualInit, build_activation
from maskwright.models.shape import EncoderShape, build_shape, check_positive, check_shape


@dataclass(frozen=True)
class ModernBertConfig(EncoderShape):
    """The shape of a ModernBERT encoder, under Hugging Face's names."""

    vocab_size: int = 50368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    initializer_range: float = 0.02
    norm_eps: float = 1e-5
    norm_bias: bool = False
    classifier_bias: bool = False
    """Whether the first product of a prediction head has a bias."""
    classifier_pooling: str = "cls"
    """What a classifier reads of a text: its first token (where a file says nothing) or the mean of all."""
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    local_attention: int = 128
    """Tokens a local layer sees, half of them on each side."""
    global_attn_every_n_layers: int = 3
    global_rope_theta: float = 160_000.0
    local_rope_theta: float = 10_000.0
    pad_token_id: int = 0
    residual_init: ResidualInit = "normal"

    def __post_init__(self) -> None:
        check_shape(self, ("embedding_dropout", "attention_dropout", "mlp_dropout"), activation="hidden_activation")
        for name, least in (("global_attn_every_n_layers", 1), ("local_attention", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        check_positive(self, ("norm_eps", "global_rope_theta", "local_rope_theta"))
        if self.hidden_size // self.num_attention_heads % 2:
            raise InputError(
                f"hidden_size {self.hidden_size} / num_attention_heads {self.num_attention_heads} is odd;"
                " rotary positions need an even head size"
            )

    @property
    def rotary_bases(self) -> tuple[float, float]:
        """Of global and of local layers."""
        return self.global_rope_theta, self.local_rope_theta

    def is_global(self, layer: int) -> bool:
        return layer % self.global_attn_every_n_layers == 0


class ModernBertLayer(nn.Module):
    """Two branches, each normalised before it and added to its input."""

    def __init__(self, config: ModernBertConfig, index: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.is_global = config.is_global(index)
        # The embeddings are normalised already, so the first attention takes them as they are.
        self.attention_norm = _build_norm(config) if index else nn.Identity()
        self.attention = SelfAttention(width, config.num_attention_heads, config.attention_dropout, bias=False)
        self.attention_dropout = Dropout(config.attention_dropout)
        self.feed_forward_norm = _build_norm(config)
        self.up = Linear(width, 2 * config.intermediate_size, bias=False)
        self.activation = build_activation(config.hidden_activation)
        self.dropout = Dropout(config.mlp_dropout)
        self.down = LinearAfterGate(config.intermediate_size, width, bias=False)

    def forward(self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation) -> Tensor:
        attended = self.attention(self.attention_norm(hidden), attention_mask, rotation)
        hidden = hidden + self.attention_dropout(attended)
        value, gate = self.up(self.feed_forward_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(self.dropout(self.activation(value) * gate))

    def project(
        self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of the layer's input."""
        return self.attention.project(self.attention_norm(hidden), rotation)


class RotaryRamp(nn.Module):
    """The bases of global and local layers, from one pair to another over a share of a run, evenly in logarithms."""

    bases: Tensor
    """(2,) on the device, where recorded passes read them anew in every step."""

    def __init__(self, begin: tuple[float, float], end: tuple[float, float], share: float) -> None:
        super().__init__()
        self.begin, self.end, self.share = begin, end, share
        self.register_buffer("bases", torch.tensor(begin), persistent=False)

    def follow(self, progress: float) -> tuple[float, float]:
        """Set the bases of this part of the run, and return them."""
        done = min(1.0, progress / self.share)
        in_global, in_local = (
            end if done == 1 else begin * (end / begin) ** done for begin, end in zip(self.begin, self.end, strict=True)
        )
        self.bases[0].fill_(in_global)
        self.bases[1].fill_(in_local)
        return in_global, in_local


def _read_newer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_flatten_rope(config), **_read_layer_types(config)}


def _flatten_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Newer files nest the rotary bases by kind of layer; older ones and ours have them flat."""
    rope = config.get("rope_parameters")
    flat = dict(config)
    for kind, name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        settings = rope.get(kind) if isinstance(rope, dict) else None
        if isinstance(settings, dict):
            if settings.get("rope_type", "default") != "default":
                raise InputError(f"'rope_type' is {settings['rope_type']!r}; only 'default' is supported")
            flat[name] = settings.get("rope_theta", flat.get(name))
    return flat


def _read_layer_types(config: Mapping[str, Any]) -> dict[str, int]:
    """Newer files list the kind of every layer where older ones say how many are between two global ones."""
    kinds = config.get("layer_types")
    if not isinstance(kinds, list):
        return {}
    if len(kinds) != config.get("num_hidden_layers", len(kinds)):
        raise InputError(
            f"'layer_types' names {len(kinds)} layers, 'num_hidden_layers' is {config['num_hidden_layers']}"
        )
    is_global = [kind == "full_attention" for kind in kinds]
    for distance in range(1, len(kinds) + 1):
        if is_global == [layer % distance == 0 for layer in range(len(kinds))]:
            return {"global_attn_every_n_layers": distance}
    raise InputError("'layer_types' is irregular; only a global layer after every n-th is supported")


_TASK_HEAD = TaskHeadLayout(
    "ModernBertForTokenClassification",
    dense="head.dense",
    norm="head.norm",
    activation="gelu",
    has_dense_bias=False,
    default_dropout=0.0,
    settings={"activation": "classifier_activation", "has_dense_bias": "classifier_bias"},
)
"""All of its heads have the dense layer and the norm of the prediction head before the logits."""

MODERNBERT_FAMILY = Family(
    model_type="modernbert",
    architectures=("ModernBertModel", "ModernBertForMaskedLM"),
    prefix="model",
    layer_prefix="layers.{}",
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
    head_activation="gelu",
    head_activation_setting="classifier_activation",
    sequence_head=replace(
        _TASK_HEAD,
        architecture="ModernBertForSequenceClassification",
        settings={**_TASK_HEAD.settings, "pooling": "classifier_pooling"},
    ),
    token_head=_TASK_HEAD,
    span_head=replace(_TASK_HEAD, architecture="ModernBertForQuestionAnswering"),
    own_settings=("residual_init",),
    fixed_settings={"attention_bias": False, "mlp_bias": False, "decoder_bias": True, "rope_scaling": None},
    unused_settings=(
        "initializer_cutoff_factor",
        "layer_norm_eps",
        "position_embedding_type",
        "repad_logits_with_grad",
    ),
    stated_settings={
        "initializer_cutoff_factor": 2.0,
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
    },
    read_newer=_read_newer_settings,
    embedding_parts=("word", "embedding_norm", "dropout"),
    run_settings={
        "hidden_act": ("hidden_activation",),
        "hidden_dropout_prob": ("embedding_dropout", "mlp_dropout"),
        "attention_probs_dropout_prob": ("attention_dropout",),
        "layer_norm_eps": ("norm_eps",),
        "norm_bias": ("norm_bias", "classifier_bias"),
    },
)


class ModernBERT(PackedEncoder):
    """`from_variant`: `tiny` 4x256, `small` 6x512, and the published `base` 22x768 and `large` 28x1024."""

    family = MODERNBERT_FAMILY
    config_class = ModernBertConfig
    stretching_settings = ("max_position_embeddings", "global_rope_theta", "local_rope_theta")
    # The first token learns nothing of a text from masked tokens; the published models read the mean too.
    variants: ClassVar = {
        "tiny": {**build_shape(4, 256, 4, intermediate_size=384), "classifier_pooling": "mean"},
        "small": {**build_shape(6, 512, 8, intermediate_size=768), "classifier_pooling": "mean"},
        "base": {**build_shape(22, 768, 12, intermediate_size=1152), "classifier_pooling": "mean"},
        "large": {**build_shape(28, 1024, 16, intermediate_size=2624), "classifier_pooling": "mean"},
    }

    def __init__(self, config: ModernBertConfig) -> None:
        super().__init__()
        self.check_config(config)
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.embedding_norm = _build_norm(config)
        self.dropout = Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(ModernBertLayer(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = _build_norm(config)
        self.rotary_ramp: RotaryRamp | None = None
        self.reset_parameters()

    @property
    def norm_eps(self) -> float:
        return float(self.config.norm_eps)

    @property
    def activation(self) -> str:
        return str(self.config.hidden_activation)

    @property
    def attention_dropout(self) -> float:
        return float(self.config.attention_dropout)

    @property
    def mlm_head_bias(self) -> bool:
        return bool(self.config.classifier_bias)

    @property
    def mlm_norm_bias(self) -> bool:
        return bool(self.config.norm_bias)

    @property
    def half_window(self) -> int:
        return int(self.config.local_attention) // 2

    def get_input_embeddings(self) -> nn.Embedding:
        return self.word

    def embed(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Segments (`token_type_ids`) do not exist in this family and change nothing."""
        return self.dropout(self.embedding_norm(self.word(input_ids)))

    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Documents, is_causal: Tensor | None = None
    ) -> Tensor:
        config = self.config
        head_size = config.hidden_size // config.num_attention_heads
        global_base, local_base = self.config.rotary_bases if self.rotary_ramp is None else self.rotary_ramp.bases
        global_mask = self.build_mask(hidden, positions, document_ids, is_causal)
        global_rotation = Rotation(positions, head_size, global_base)
        local_mask = self.build_mask(hidden, positions, document_ids, is_causal, self.half_window)
        local_rotation = Rotation(positions, head_size, local_base)
        for layer in self.layers:
            if layer.is_global:
                hidden = self.run_layer(layer, hidden, global_mask, global_rotation)
            else:
                hidden = self.run_layer(layer, hidden, local_mask, local_rotation)
        return self.final_norm(hidden)

    def stretch(self, settings: Mapping[str, Any], ramp_share: float = 0.0) -> None:
        begin = self.config.rotary_bases
        super().stretch(settings)
        if ramp_share:
            self.rotary_ramp = RotaryRamp(begin, self.config.rotary_bases, ramp_share)
            self.follow(0.0)

    def follow(self, progress: float) -> None:
        """Bases on the way are the model's own: what is saved then is read as it was trained."""
        if self.rotary_ramp is not None:
            in_global, in_local = self.rotary_ramp.follow(progress)
            self.config = replace(self.config, global_rope_theta=in_global, local_rope_theta=in_local)


def _build_norm(config: ModernBertConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
