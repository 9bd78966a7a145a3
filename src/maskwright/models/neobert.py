"""NeoBERT (Le Breton et al. 2025), written for packed rows.

Rotary positions, gated feed-forward and RMSNorm before each branch; the prediction head is the output alone. Its
published folders bring code, which is never run: their names and settings are all that is read.
B rows, S row length, D width, H attention heads, K head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from maskwright.batch import Documents
from maskwright.errors import InputError
from maskwright.models.attention import AttentionMask, Rotation, SelfAttention
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import Family, TaskHeadLayout
from maskwright.models.layers import Linear, LinearAfterGate, ResidualInit, RMSNorm, build_activation
from maskwright.models.shape import EncoderShape, build_shape, check_positive, check_shape

_ROTARY_BASE = 10_000.0
_GATED_MULTIPLE = 8


@dataclass(frozen=True)
class NeoBertConfig(EncoderShape):
    """The shape of a NeoBERT encoder; config.json has its own names for some of it."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 28
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    """That of a feed-forward without a gate; with one, two thirds of it take as many weights."""
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02
    norm_eps: float = 1e-5
    pad_token_id: int = 0
    residual_init: ResidualInit = "normal"

    def __post_init__(self) -> None:
        check_shape(self, (), activation="hidden_act")
        check_positive(self, ("norm_eps",))
        if self.hidden_size // self.num_attention_heads % 2:
            raise InputError(
                f"hidden_size {self.hidden_size} / num_attention_heads {self.num_attention_heads} is odd;"
                " rotary positions need an even head size"
            )

    @property
    def gated_size(self) -> int:
        """Two thirds of `intermediate_size`, rounded up to what GPUs multiply well."""
        return -(-(2 * self.intermediate_size // 3) // _GATED_MULTIPLE) * _GATED_MULTIPLE


class NeoBertAttention(SelfAttention):
    """Query, key and value of one head stand together, and positions turn features that are neighbours."""

    def __init__(self, width: int, num_attn_heads: int) -> None:
        super().__init__(width, num_attn_heads, dropout=0.0, bias=False)
        self.qkv = Linear(width, 3 * width, bias=False)  # not three blocks, as optimizers would take them for

    def split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = qkv.unflatten(-1, (self.num_attn_heads, 3, -1)).transpose(1, 2).unbind(3)
        return _part_neighbours(query), _part_neighbours(key), value


def _part_neighbours(features: Tensor) -> Tensor:
    """The even features before the odd ones, as `Rotation` pairs them: in queries and keys alike, scores stay."""
    return features.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


class NeoBertLayer(nn.Module):
    """Two branches, each normalised before it and added to its input."""

    def __init__(self, config: NeoBertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention_norm = RMSNorm(width, eps=config.norm_eps)
        self.attention = NeoBertAttention(width, config.num_attention_heads)
        self.feed_forward_norm = RMSNorm(width, eps=config.norm_eps)
        self.up = Linear(width, 2 * config.gated_size, bias=False)
        self.activation = build_activation(config.hidden_act)
        self.down = LinearAfterGate(config.gated_size, width, bias=False)

    def forward(self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), attention_mask, rotation)
        value, gate = self.up(self.feed_forward_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(self.activation(value) * gate)

    def project(
        self, hidden: Tensor, attention_mask: AttentionMask, rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of the layer's input."""
        return self.attention.project(self.attention_norm(hidden), rotation)


NEOBERT_FAMILY = Family(
    model_type="neobert",
    architectures=("NeoBERT", "NeoBERTLMHead"),
    prefix="model",
    layer_prefix="transformer_encoder.{}",
    modules={"word": "encoder", "final_norm": "layer_norm"},
    layer_modules={
        "attention_norm": ("attention_norm",),
        "attention.qkv": ("qkv",),
        "attention.output": ("wo",),
        "feed_forward_norm": ("ffn_norm",),
        "up": ("ffn.w12",),
        "down": ("ffn.w3",),
    },
    head_modules={"mlm_output": "decoder"},
    output_bias="decoder.bias",
    ties_output=False,
    sequence_head=TaskHeadLayout(
        "NeoBERTForSequenceClassification", dense="dense", drops_input=True, default_dropout=0.1
    ),
    token_head=TaskHeadLayout("NeoBERTForTokenClassification", default_dropout=0.1),
    span_head=TaskHeadLayout("NeoBERTForQuestionAnswering", "qa_outputs", dropout_setting=None, default_dropout=0.0),
    own_settings=("residual_init",),
    fixed_settings={"dropout": 0, "hidden_act": "SwiGLU", "ngpt": False, "rms_norm": True, "rope": True},
    setting_names={"max_position_embeddings": "max_length", "initializer_range": "decoder_init_range"},
    unwritten_settings=("hidden_act",),
    unused_settings=(
        "base_scale",
        "classifier_init_range",
        "dim_head",
        "embedding_init_range",
        "flash_attention",
        "kwargs",
        "pretrained_model_name_or_path",
    ),
    is_in_transformers=False,
    run_settings={"layer_norm_eps": ("norm_eps",)},
)


class NeoBERT(PackedEncoder):
    """`from_variant`: `tiny` 4x256, `small` 6x512 and the published `base` 28x768."""

    family = NEOBERT_FAMILY
    config_class = NeoBertConfig
    variants: ClassVar = {
        "tiny": build_shape(4, 256, 4, intermediate_size=1024),
        "small": build_shape(6, 512, 8, intermediate_size=2048),
        "base": build_shape(28, 768, 12, intermediate_size=3072),
    }
    stretching_settings = ("max_position_embeddings",)
    has_mlm_transform = False

    def __init__(self, config: NeoBertConfig) -> None:
        super().__init__()
        self.check_config(config)
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList(NeoBertLayer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.reset_parameters()

    @property
    def norm_eps(self) -> float:
        return float(self.config.norm_eps)

    @property
    def activation(self) -> str:
        return str(self.config.hidden_act)

    @property
    def attention_dropout(self) -> float:
        return 0.0

    def get_input_embeddings(self) -> nn.Embedding:
        return self.word

    def embed(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Segments (`token_type_ids`) do not exist in this family and change nothing."""
        return self.word(input_ids)

    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Documents, is_causal: Tensor | None = None
    ) -> Tensor:
        attention_mask = self.build_mask(hidden, positions, document_ids, is_causal)
        rotation = Rotation(positions, self.hidden_size // self.config.num_attention_heads, _ROTARY_BASE)
        for layer in self.layers:
            hidden = self.run_layer(layer, hidden, attention_mask, rotation)
        return self.final_norm(hidden)
