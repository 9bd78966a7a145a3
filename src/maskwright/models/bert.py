"""BERT (Devlin et al. 2018), written for packed rows, and what its descendants share with it.

B rows, S row length, D width, E width of the embeddings (D unless a family sets it apart). Padded inputs are accepted
at the public edge: a padded batch is a packed one with one document per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from maskwright.batch import Documents
from maskwright.errors import InputError
from maskwright.models.attention import AttentionMask, SelfAttention
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import Family, PairHeadLayout, TaskHeadLayout
from maskwright.models.layers import (
    Dropout,
    Linear,
    NormalizationType,
    ResidualInit,
    StochasticDepth,
    add_and_normalize,
    build_activation,
    build_norm,
)
from maskwright.models.shape import EncoderShape, build_shape, check_choice, check_positive, check_shape


@dataclass(frozen=True)
class BertConfig(EncoderShape):
    """The shape of a BERT encoder, under Hugging Face's names where it has one."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    normalization_type: NormalizationType = "layer_norm"
    use_stochastic_depth: bool = False
    stochastic_depth_rate: float = 0.1
    residual_init: ResidualInit = "normal"

    def __post_init__(self) -> None:
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "stochastic_depth_rate")
        check_shape(self, rates, activation="hidden_act")
        check_positive(self, ("layer_norm_eps",))
        if not 0 <= self.type_vocab_size <= self.vocab_size:
            raise InputError(f"type_vocab_size is {self.type_vocab_size}; it must lie between 0 and vocab_size")
        check_choice("normalization_type", self.normalization_type, ("layer_norm", "rms_norm"))


class BertEmbeddings(nn.Module):
    """The sum of word, position and segment embeddings, normalised."""

    def __init__(self, config: BertConfig, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, width)
        self.token_type = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = build_norm(config.normalization_type, width, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """(B, S, E); segments have no effect in a family without segment embeddings."""
        words = self.word(input_ids)
        if self.token_type is not None:
            is_told = token_type_ids is not None and self.token_type.num_embeddings > 1
            words = words + (self.token_type(token_type_ids) if is_told else self.token_type.weight[0])
        return self.dropout(self.norm(words + self.position(positions)))


class BertLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection and a norm after it (post-norm)."""

    def __init__(self, config: BertConfig, stochastic_depth_rate: float) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = SelfAttention(width, config.num_attention_heads, config.attention_probs_dropout_prob)
        self.attention_norm = build_norm(config.normalization_type, width, config.layer_norm_eps)
        self.up = Linear(width, config.intermediate_size)
        self.activation = build_activation(config.hidden_act)
        self.down = Linear(config.intermediate_size, width)
        self.feed_forward_norm = build_norm(config.normalization_type, width, config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.stochastic_depth = StochasticDepth(stochastic_depth_rate)

    def forward(self, hidden: Tensor, attention_mask: AttentionMask) -> Tensor:
        attended = self.dropout(self.attention(hidden, attention_mask))
        hidden = add_and_normalize(self.attention_norm, hidden, self.stochastic_depth(attended))
        transformed = self.dropout(self.down(self.activation(self.up(hidden))))
        return add_and_normalize(self.feed_forward_norm, hidden, self.stochastic_depth(transformed))

    def project(self, hidden: Tensor, attention_mask: AttentionMask) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of the layer's input."""
        return self.attention.project(hidden)


BERT_FAMILY = Family(
    model_type="bert",
    architectures=("BertModel", "BertForMaskedLM"),
    prefix="bert",
    layer_prefix="encoder.layer.{}",
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
    sequence_head=TaskHeadLayout("BertForSequenceClassification", dense="bert.pooler.dense"),
    token_head=TaskHeadLayout("BertForTokenClassification"),
    span_head=TaskHeadLayout("BertForQuestionAnswering", "qa_outputs", dropout_setting=None, default_dropout=0.0),
    own_settings=("normalization_type", "use_stochastic_depth", "stochastic_depth_rate", "residual_init"),
    fixed_settings={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    },
    causal_architecture="BertLMHeadModel",
    pair_head=PairHeadLayout(
        "BertForPreTraining", {"pooler": "bert.pooler.dense", "classifier": "cls.seq_relationship"}
    ),
    embedding_parts=("embeddings", "embedding_projection"),
    run_settings={},
)


class BERT(PackedEncoder):
    """`from_variant`: `tiny` 4x256, `small` 6x512, `base` 12x768 or `large` 24x1024."""

    family = BERT_FAMILY
    config_class = BertConfig
    variants: ClassVar = {
        "tiny": build_shape(4, 256, 4, intermediate_size=1024),
        "small": build_shape(6, 512, 8, intermediate_size=2048),
        "base": build_shape(12, 768, 12, intermediate_size=3072),
        "large": build_shape(24, 1024, 16, intermediate_size=4096),
    }

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.check_config(config)
        self.config = config
        self.embeddings = BertEmbeddings(config, self.embedding_size)
        self.embedding_projection = self.build_embedding_projection()
        self.layers = nn.ModuleList(
            BertLayer(config, _depth_rate(config, index)) for index in range(self.num_distinct_layers)
        )
        self.reset_parameters()

    @property
    def num_distinct_layers(self) -> int:
        """Layers with weights of their own."""
        return int(self.config.num_hidden_layers)

    @property
    def first_position(self) -> int:
        """The row of the position table that a document's first token reads."""
        return 0

    @property
    def max_length(self) -> int:
        return int(self.config.max_position_embeddings) - self.first_position

    @property
    def norm_eps(self) -> float:
        return float(self.config.layer_norm_eps)

    @property
    def activation(self) -> str:
        return str(self.config.hidden_act)

    @property
    def attention_dropout(self) -> float:
        return float(self.config.attention_probs_dropout_prob)

    def build_embedding_projection(self) -> nn.Module:
        """The projection from the embeddings' width to the layers'."""
        return nn.Identity()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word

    def embed(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        positions = positions + self.first_position if self.first_position else positions
        return self.embedding_projection(self.embeddings(input_ids, positions, token_type_ids))

    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Documents, is_causal: Tensor | None = None
    ) -> Tensor:
        attention_mask = self.build_mask(hidden, positions, document_ids, is_causal)
        for index in range(self.config.num_hidden_layers):
            hidden = self.run_layer(self.layer_at(index), hidden, attention_mask)
        return hidden

    def layer_at(self, depth: int) -> nn.Module:
        return self.layers[depth]


def _depth_rate(config: BertConfig, index: int) -> float:
    """The rate grows linearly with depth, up to the one configured."""
    if not config.use_stochastic_depth:
        return 0.0
    return config.stochastic_depth_rate * (index + 1) / config.num_hidden_layers
