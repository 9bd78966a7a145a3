"""Masking, optimizer, schedule and the run of the loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from maskwright.sections.base import Section


class MaskingConfig(Section):
    strategy: Literal["token"] = Field("token", description="What is masked as a unit.")
    selection: Literal["exact", "bernoulli"] = Field(
        "exact", description="A fixed share per sample, or a coin per token."
    )
    ratio: float = Field(0.15, gt=0, le=1, description="Share of tokens to mask, at the start of the run.")
    final_ratio: float | None = Field(None, gt=0, le=1, description="The share at the end; unset: the same.")
    ratio_schedule: Literal["constant", "linear", "cosine", "step"] = Field(
        "linear", description="The way from ratio to final_ratio."
    )
    random_token_ratio: float = Field(0.1, ge=0, le=1, description="Of the masked: replaced by a random token.")
    unchanged_ratio: float = Field(0.1, ge=0, le=1, description="Of the masked: left as they are.")

    @model_validator(mode="after")
    def _check_split(self) -> MaskingConfig:
        if self.random_token_ratio + self.unchanged_ratio > 1:
            raise ValueError("random_token_ratio + unchanged_ratio exceeds 1; the rest becomes [MASK]")
        return self


class OptimizerConfig(Section):
    type: Literal["adamw", "muon"] = Field("adamw", description="muon: matrices by Muon, the rest by AdamW.")
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate of AdamW.")
    muon_learning_rate: float = Field(0.02, gt=0, description="Peak learning rate of Muon's matrices.")
    weight_decay: float = Field(0.01, ge=0, description="On matrices; never on norms, biases, embeddings.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's decay of the mean gradient.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's decay of the mean squared gradient.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW's floor of the step's denominator.")
    gradient_clipping_by_norm: float | None = Field(1.0, gt=0, description="Largest gradient norm; null: no clipping.")


class ScheduleConfig(Section):
    type: Literal["constant", "cosine_decay", "polynomial_decay", "wsd"] = Field(
        "cosine_decay", description="Shape after the warm-up; wsd stays at the peak, then falls in a line."
    )
    warmup_steps: int | None = Field(None, ge=0, description="Steps up to the peak; unset: warmup_share of the run.")
    warmup_share: float = Field(0.1, ge=0, lt=1, description="Share of the run spent rising to the peak.")
    warmup_start_lr: float = Field(1e-8, ge=0, description="Learning rate of the first step.")
    alpha: float = Field(1e-6, ge=0, le=1, description="Last learning rate, as a fraction of the peak.")
    power: float = Field(1.0, gt=0, description="polynomial_decay: 1 is a straight line.")
    decay_share: float = Field(0.2, gt=0, le=1, description="wsd: the share of the run, at its end, spent falling.")


class TrainingConfig(Section):
    mode: Literal["mlm"] = Field("mlm", description="The objective.")
    epochs: int = Field(3, ge=1, description="Passes over the data.")
    max_steps: int | None = Field(None, ge=1, description="Stop after this many steps.")
    max_seconds: float | None = Field(
        None, gt=0, description="Stop after this much training time; schedules follow it."
    )
    batch_tokens: int = Field(8192, ge=1, description="Tokens per optimizer step, padding included.")
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="Tokens at a time in memory; unset: the whole batch."
    )
    log_every_steps: int = Field(10, ge=1, description="Steps between lines of metrics.jsonl.")
    checkpoint_every_steps: int = Field(500, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints to keep.")
    final_evaluation: bool = Field(True, description="Evaluate the whole validation set at the end.")
    early_stopping_patience: int | None = Field(
        None, ge=1, description="Stop after this many epochs without a better validation loss, and go back to the best."
    )
    tensorboard: bool = Field(False, description="Write TensorBoard events to the run folder.")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
