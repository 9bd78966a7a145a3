"""Training objectives: masked tokens, replaced tokens, pairs, a teacher; phases; and the measurement of forgetting."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from maskwright.sections.base import Section
from maskwright.sections.data import SourceConfig, build_sources


class MaskingConfig(Section):
    strategy: Literal["token", "whole_word", "span", "frequency", "adaptive"] = Field(
        default="token",
        description="The unit of masking: a token, a word or a span of words; or tokens that are rare (frequency) or on"
        " which the model's own loss is high (adaptive) more often than others.",
    )
    selection: Literal["exact", "bernoulli"] = Field(
        default="exact", description="An exact share of each sample, or an independent draw for each unit."
    )
    ratio: float = Field(default=0.15, gt=0, le=1, description="Share of tokens to mask, at the start of the run.")
    final_ratio: float | None = Field(
        default=None, gt=0, le=1, description="Share of tokens to mask at the end of the run; unset: ratio throughout."
    )
    ratio_schedule: Literal["constant", "linear", "cosine", "step"] = Field(
        default="linear", description="How the share changes from ratio to final_ratio."
    )
    random_token_ratio: float = Field(
        default=0.1, ge=0, le=1, description="Share of the selected tokens replaced by a random token."
    )
    unchanged_ratio: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of the selected tokens left unchanged; the rest becomes the mask token.",
    )
    span_p: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="span: probability that a span ends after a word; larger values give shorter spans.",
    )
    span_max_words: int = Field(default=10, ge=1, description="span: maximum number of words in a span.")
    exponent: float = Field(
        default=0.5,
        gt=0,
        description="frequency, adaptive: a token's weight is its inverse frequency, or running loss, to this power.",
    )
    update_every_steps: int = Field(
        default=200, ge=1, description="adaptive: steps between two updates of the running losses."
    )
    loss_decay: float = Field(
        default=0.5, ge=0, lt=1, description="adaptive: share of the old running loss that an update keeps."
    )

    @property
    def needs_words(self) -> bool:
        """Whether batches need word boundaries."""
        return self.strategy in ("whole_word", "span")

    @model_validator(mode="after")
    def _check_split(self) -> MaskingConfig:
        if self.random_token_ratio + self.unchanged_ratio > 1:
            raise ValueError("random_token_ratio + unchanged_ratio exceeds 1; the rest becomes [MASK]")
        if self.selection == "bernoulli" and self.strategy in ("frequency", "adaptive"):
            raise ValueError(f"strategy {self.strategy} shares out an exact number of tokens; set selection=exact")
        return self


class PhaseConfig(Section):
    """A part of a run with its own objective, mask ratio and mixture of sources."""

    mode: Literal["mlm", "clm", "hybrid"] = Field(default="mlm", description="The objective of this phase.")
    until: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the run at which the phase ends; the last phase ends at 1, or leaves it unset.",
    )
    causal_share: float = Field(
        default=0.5, ge=0, le=1, description="hybrid: share of samples trained by next-token prediction."
    )

    mask_ratio: float | None = Field(
        default=None, gt=0, le=1, description="Share of tokens to mask in this phase; unset: that of masking."
    )
    sampling_alpha: float | None = Field(
        default=None, ge=0, le=1, description="data.sampling_alpha in this phase; unset: that of data."
    )

    def find_share(self) -> float:
        """The share of samples trained on next tokens; the others are trained on masked tokens."""
        return {"mlm": 0.0, "clm": 1.0, "hybrid": self.causal_share}[self.mode]


class ReplacedTokensConfig(Section):
    """training.mode=rtd: a small generator fills masked tokens, and the model detects them (Clark et al. 2020)."""

    generator_size: float = Field(
        default=0.25, gt=0, le=1, description="Width of the generator as a share of the model's width."
    )
    discriminator_weight: float = Field(default=50.0, gt=0, description="Weight of the replaced-token detection loss.")
    temperature: float = Field(default=1.0, gt=0, description="Temperature at which the generator samples tokens.")


class DiffusionConfig(Section):
    """training.mode=diffusion: tokens are masked with a probability drawn for each sample (Sahoo et al. 2024)."""

    min_share: float = Field(
        default=1e-3,
        gt=0,
        lt=1,
        description="Lower limit of the share of a sample that is masked, and so the upper limit, as its inverse, of a"
        " token's weight.",
    )


class PairsConfig(Section):
    """An auxiliary loss on pairs of segments, as BERT and ALBERT have it."""

    task: Literal["nsp", "sop"] | None = Field(
        default=None, description="Next-sentence prediction (nsp) or sentence-order prediction (sop); unset: no pairs."
    )
    weight: float = Field(default=1.0, gt=0, description="Weight of the auxiliary loss.")


class DistillationConfig(Section):
    """A student of a larger model, of which it has fewer layers (model.num_hidden_layers)."""

    teacher: str | None = Field(
        default=None, description="The run, model folder or hub id of the model to learn from; unset: no teacher."
    )
    objective: Literal["distilbert", "minilm"] = Field(
        default="distilbert",
        description="Learn the teacher's predictions and hidden states (distilbert), or how its last layer's queries"
        " meet keys and its values each other (minilm).",
    )
    from_layers: list[int] | None = Field(
        default=None,
        description="Numbers of the teacher's layers, from 0, that the student's begin as; unset: evenly spaced, the"
        " first and the last among them. Of another width all weights are new.",
    )
    mlm_weight: float | None = Field(
        default=None, gt=0, description="Weight of the masked tokens' loss; unset: distilbert 2, minilm 1."
    )
    temperature: float = Field(default=2.0, gt=0, description="distilbert: temperature of the soft labels.")
    soft_label_weight: float = Field(default=5.0, gt=0, description="distilbert: weight of the soft labels.")
    hidden_weight: float | None = Field(
        default=None, gt=0, description="Weight of the hidden states; unset: distilbert 1, minilm without them."
    )
    relation_heads: int | None = Field(
        default=None, ge=1, description="minilm: parts that relations are computed in; unset: the teacher's heads."
    )
    query_key_weight: float = Field(default=1.0, gt=0, description="minilm: weight of queries with keys.")
    value_weight: float = Field(default=1.0, gt=0, description="minilm: weight of values with values.")

    @model_validator(mode="after")
    def _check_used(self) -> DistillationConfig:
        """Refuse settings that would have no effect."""
        unused: tuple[str, ...] = _RELATIONS if self.objective == "distilbert" else _SOFT_LABELS
        reason = f"objective {self.objective} does not use it"
        if self.teacher is None:
            unused, reason = tuple(name for name in type(self).model_fields if name != "teacher"), "there is no teacher"
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"distillation.{name} is {getattr(self, name)}, but {reason}; leave it out")
        return self


_SOFT_LABELS = ("temperature", "soft_label_weight")
_RELATIONS = ("relation_heads", "query_key_weight", "value_weight")


class ForgettingConfig(Section):
    """Measure forgetting: the loss on general text before, during and after the run."""

    general: str | list[SourceConfig] | None = Field(
        default=None,
        description="General text of the kind the model was trained on, such as builtin:python; unset: forgetting is"
        " not measured.",
    )
    max_increase: float = Field(
        default=0.1,
        gt=0,
        description="Nats by which the loss on general text may rise; above that, the run stops and restores the last"
        " weights below the limit.",
    )
    max_tokens: int = Field(
        default=30_000, ge=100, description="Approximate number of tokens of the general text to evaluate on."
    )

    @field_validator("general", mode="before")
    @classmethod
    def _read_sources(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else build_sources(value)


def check_phases(phases: list[PhaseConfig]) -> list[PhaseConfig]:
    """Phases follow one another and the last ends with the run."""
    ends = [phase.until for phase in phases]
    for number, (end, following) in enumerate(pairwise(ends), start=1):
        if end is None:
            raise ValueError(f"phase {number} has no 'until'; only the last may leave it out")
        if following is not None and following <= end:
            raise ValueError(f"phase {number + 1} ends at {following}, phase {number} at {end} already")
    if ends and ends[-1] not in (None, 1.0):
        raise ValueError(f"the last phase ends at {ends[-1]}; it must end at 1, the end of the run")
    return phases
