"""The shape of the model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from maskwright.sections.base import Section


class ModelChoice(Section):
    """Which model a run trains: a new one of a known size or a saved one, its prediction head, what of it learns."""

    family: str = Field(default="bert", description="The architecture, such as bert or modernbert.")
    variant: Literal["tiny", "small", "base", "large"] = Field(default="base", description="The size to start from.")
    mlm_head_activation: str = Field(default="gelu", description="Activation of the prediction head.")
    mlm_head_dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout of the prediction head.")
    from_: str | None = Field(
        default=None,
        alias="from",
        description="Continue from this run, model folder or hub id; its shape counts, rotary positions aside.",
    )
    rope_ramp_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="With from: share of the run in which rotary bases grow to those set; 0: at once.",
    )
    freeze_encoder: bool = Field(default=False, description="With from: train the prediction head alone.")


class ModelConfig(ModelChoice):
    """The chosen model, and the shape of its encoder: a field here overrides the known size's value when it is set."""

    hidden_size: int | None = Field(default=None, ge=1, description="Width of the hidden states.")
    num_hidden_layers: int | None = Field(default=None, ge=1, description="Number of layers.")
    num_attention_heads: int | None = Field(default=None, ge=1, description="Attention heads; must divide the width.")
    intermediate_size: int | None = Field(
        default=None, ge=1, description="Feed-forward width; grows with the width if unset."
    )
    hidden_act: str | None = Field(default=None, description="Feed-forward activation.")
    hidden_dropout_prob: float | None = Field(default=None, ge=0, lt=1, description="Dropout on hidden states.")
    attention_probs_dropout_prob: float | None = Field(
        default=None, ge=0, lt=1, description="Dropout on attention weights."
    )
    max_position_embeddings: int | None = Field(
        default=None, ge=1, description="Longest input; data.max_length if unset."
    )
    initializer_range: float | None = Field(default=None, gt=0, description="Standard deviation of initial weights.")
    layer_norm_eps: float | None = Field(default=None, gt=0, description="Added to the variance in norms.")
    residual_init: Literal["normal", "zero"] | None = Field(
        default=None, description="zero: branches start as nothing."
    )
    normalization_type: Literal["layer_norm", "rms_norm"] | None = Field(
        default=None, description="bert: kind of norm."
    )
    use_stochastic_depth: bool | None = Field(
        default=None, description="bert: skip residual branches at random in training."
    )
    stochastic_depth_rate: float | None = Field(
        default=None, ge=0, lt=1, description="bert: skip rate of the last layer."
    )
    norm_bias: bool | None = Field(default=None, description="modernbert: biases in norms and head.")
    local_attention: int | None = Field(default=None, ge=2, description="modernbert: tokens a local layer sees.")
    global_attn_every_n_layers: int | None = Field(default=None, ge=1, description="modernbert: the others are local.")
    global_rope_theta: float | None = Field(default=None, gt=0, description="modernbert: rotary base of global layers.")
    local_rope_theta: float | None = Field(default=None, gt=0, description="modernbert: rotary base of local layers.")

    def shape_overrides(self) -> dict[str, Any]:
        """The encoder's settings that were set."""
        return self.model_dump(exclude=set(ModelChoice.model_fields), exclude_none=True)
