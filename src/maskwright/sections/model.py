"""The shape of the model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from maskwright.sections.base import Section


class ModelChoice(Section):
    """Which model a run trains: a new one of a known size or a saved one, its prediction head, and what is frozen."""

    family: str = Field(default="bert", description="The architecture, such as bert or modernbert.")
    variant: Literal["tiny", "small", "base", "large"] = Field(default="base", description="The size to start from.")
    mlm_head_activation: str = Field(default="gelu", description="Activation of the prediction head.")
    mlm_head_dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout of the prediction head.")
    from_: str | None = Field(
        default=None,
        alias="from",
        description="Continue from this run, checkpoint, model folder or hub id; the model keeps its shape, except"
        " rotary positions.",
    )
    rope_ramp_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="With model.from: share of the run in which rotary bases grow to the values set; 0: at once.",
    )
    freeze_encoder: bool = Field(default=False, description="With model.from: train only the prediction head.")


class ModelConfig(ModelChoice):
    """The chosen model, and the shape of its encoder: a field here overrides the known size's value when it is set."""

    hidden_size: int | None = Field(default=None, ge=1, description="Width of the hidden states.")
    num_hidden_layers: int | None = Field(default=None, ge=1, description="Number of layers.")
    num_attention_heads: int | None = Field(default=None, ge=1, description="Attention heads; must divide hidden_size.")
    intermediate_size: int | None = Field(
        default=None, ge=1, description="Width of the feed-forward layers; unset: scales with hidden_size."
    )
    hidden_act: str | None = Field(default=None, description="Feed-forward activation.")
    hidden_dropout_prob: float | None = Field(default=None, ge=0, lt=1, description="Dropout on hidden states.")
    attention_probs_dropout_prob: float | None = Field(
        default=None, ge=0, lt=1, description="Dropout on attention weights."
    )
    max_position_embeddings: int | None = Field(
        default=None, ge=1, description="Longest input in tokens; unset: data.max_length."
    )
    initializer_range: float | None = Field(default=None, gt=0, description="Standard deviation of initial weights.")
    layer_norm_eps: float | None = Field(default=None, gt=0, description="Epsilon of the norms.")
    residual_init: Literal["normal", "zero"] | None = Field(
        default=None,
        description="Initial weights at the end of residual branches; zero: each branch starts with output 0.",
    )
    normalization_type: Literal["layer_norm", "rms_norm"] | None = Field(
        default=None, description="bert: kind of normalization layer."
    )
    use_stochastic_depth: bool | None = Field(
        default=None, description="bert: skip residual branches at random during training."
    )
    stochastic_depth_rate: float | None = Field(
        default=None, ge=0, lt=1, description="bert: probability of skipping in the last layer."
    )
    norm_bias: bool | None = Field(default=None, description="modernbert: biases in norms and head.")
    local_attention: int | None = Field(
        default=None, ge=2, description="modernbert: attention window of local layers in tokens."
    )
    global_attn_every_n_layers: int | None = Field(
        default=None, ge=1, description="modernbert: every n-th layer has global attention, the others local."
    )
    global_rope_theta: float | None = Field(
        default=None, gt=0, description="modernbert: rotary base (theta) of global layers."
    )
    local_rope_theta: float | None = Field(
        default=None, gt=0, description="modernbert: rotary base (theta) of local layers."
    )

    def shape_overrides(self) -> dict[str, Any]:
        """The encoder's settings that were set."""
        return self.model_dump(exclude=set(ModelChoice.model_fields), exclude_none=True)
