"""Optimizer, schedule and the run of the loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from maskwright.sections.base import Section
from maskwright.sections.synonyms import SynonymsOfTraining


class OptimizerConfig(Section):
    type: Literal["adamw", "stable_adamw", "muon", "lamb", "novograd", "lion", "sgd"] = Field(
        default="adamw", description="muon: matrices by Muon, the rest by AdamW."
    )
    learning_rate: float = Field(default=5e-5, gt=0, description="Peak learning rate; for muon that of AdamW's share.")
    muon_learning_rate: float = Field(default=0.02, gt=0, description="muon: peak learning rate of the matrices.")
    scale_with_processes: Literal["none", "linear", "sqrt"] = Field(
        default="none", description="Multiply the learning rates by the number of processes, or by its square root."
    )
    weight_decay: float = Field(default=0.01, ge=0, description="On matrices; never on norms and biases.")
    embedding_decay: float = Field(default=0.0, ge=0, description="Weight decay on embeddings.")
    beta1: float | None = Field(
        default=None, ge=0, lt=1, description="Decay of the mean gradient; unset: 0.9, for novograd 0.95. Not for sgd."
    )
    beta2: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Decay of the mean squared gradient, for lion of the momentum; unset: 0.999 for adamw, muon and"
        " lamb, 0.98 for stable_adamw and novograd, 0.99 for lion. Not for sgd.",
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="Floor of the step's denominator; unset: 1e-8 for adamw, muon and novograd, 1e-6 for stable_adamw"
        " and lamb. Not for lion and sgd.",
    )
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="sgd and muon: decay of the momentum; unset: 0.9 for sgd, 0.95 for muon."
    )
    gradient_clipping_by_norm: float | None = Field(
        default=1.0, gt=0, description="Largest gradient norm; null: no clipping."
    )


class ScheduleConfig(Section):
    type: Literal["constant", "linear", "cosine_decay", "polynomial_decay", "wsd"] = Field(
        default="cosine_decay", description="Shape after the warm-up; wsd stays at the peak, then falls in a line."
    )
    decay_steps: int | None = Field(
        default=None,
        ge=1,
        description="The step at which the schedule ends, counted from the run's first, warm-up included; the rate"
        " stays there. Unset: the end of the run, be it set by steps, epochs or seconds (a time-budget schedule).",
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, description="Steps up to the peak; unset: warmup_share of the run."
    )
    warmup_share: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the run, or of decay_steps, spent rising to the peak."
    )
    warmup_start_lr: float = Field(default=1e-8, ge=0, description="Learning rate of the first step.")
    alpha: float = Field(default=1e-6, ge=0, le=1, description="Last learning rate, as a fraction of the peak.")
    power: float = Field(default=1.0, gt=0, description="polynomial_decay: 1 is a straight line.")
    decay_share: float = Field(
        default=0.2, gt=0, le=1, description="wsd: the share of the run, or of decay_steps, at its end, spent falling."
    )

    @model_validator(mode="after")
    def _check_room_for_decay(self) -> ScheduleConfig:
        if self.decay_steps is not None and self.warmup_steps is not None and self.warmup_steps >= self.decay_steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps}, decay_steps {self.decay_steps}, which includes the warm-up;"
                " make decay_steps the larger"
            )
        return self


class TrainingConfig(SynonymsOfTraining):
    mode: Literal["mlm", "clm", "hybrid", "rtd"] = Field(
        default="mlm",
        description="The objective: masked tokens, next tokens, some samples of each, or replaced tokens.",
    )
    causal_share: float = Field(
        default=0.5, ge=0, le=1, description="hybrid: share of samples whose next tokens are learnt."
    )
    epochs: int = Field(default=3, ge=1, description="Passes over the data.")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after this many steps.")
    max_tokens: int | None = Field(default=None, ge=1, description="Stop after this many tokens, padding included.")
    max_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Stop after this much training time, compiling not counted; schedules follow it.",
    )
    initial_epoch: int = Field(
        default=0, ge=0, description="Number of the first epoch, to go on where earlier runs ended."
    )
    batch_tokens: int = Field(default=8192, ge=1, description="Tokens per optimizer step, padding included.")
    micro_batch_tokens: int | None = Field(
        default=None, ge=1, description="Tokens at a time in memory; unset: the whole batch."
    )
    batch_tokens_start: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of the first steps, from which batches grow to batch_tokens; unset: no growth.",
    )
    batch_ramp_share: float = Field(default=0.2, gt=0, le=1, description="Share of the run in which batches grow.")
    precision: Literal["auto", "fp32", "bf16", "fp16", "tf32", "fp8"] = Field(
        default="auto", description="Numbers of the matrix products; auto measures once what is fast on this machine."
    )
    compile: bool | None = Field(
        default=None,
        description="Run layers as compiled kernels, which takes some seconds to begin with; unset: on one or several"
        " GPUs, not on CPUs.",
    )
    activation_checkpointing: bool = Field(
        default=False, description="Compute activations twice instead of keeping them: less memory, more time."
    )
    average_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Keep a moving average of the weights (0.999) to evaluate and save at the end.",
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="Several processes: a copy of the model in each, or a part of it (fsdp)."
    )
    dead_process_seconds: float = Field(
        default=60.0, gt=0, description="Several processes: end when one has been silent for so long."
    )
    max_bad_steps: int = Field(
        default=10, ge=1, description="Stop after so many steps in a row whose loss or gradient is not finite."
    )
    rollback_deviations: float | None = Field(
        default=None,
        gt=0,
        description="Go back to the last checkpoint when the loss jumps by this many standard deviations.",
    )
    log_every_steps: int = Field(default=10, ge=1, description="Steps between lines of metrics.jsonl.")
    checkpoint_every_steps: int = Field(default=500, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="Newest checkpoints to keep.")
    keep_every_steps: int | None = Field(
        default=None, ge=1, description="Keep checkpoints of every so many steps for good."
    )
    keep_best: bool = Field(default=False, description="Keep the checkpoint with the best validation loss as well.")
    keep_optimizer: bool = Field(
        default=False, description="With model.from a checkpoint: go on with its optimizer state as well."
    )
    evaluate_every_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps between evaluations on the validation set, besides the end of each epoch.",
    )
    evaluate_max_batches: int | None = Field(
        default=None,
        ge=1,
        description="Batches of such an evaluation; unset: all. The final evaluation always takes all.",
    )
    final_evaluation: bool = Field(default=True, description="Evaluate the whole validation set at the end.")
    early_stopping_patience: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many epochs without a better validation loss, and go back to the best.",
    )
    tensorboard: bool = Field(default=False, description="Write TensorBoard events to the run folder.")
    log_to: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        default_factory=list,
        description="Where metrics go besides the run folder, such as [wandb]; each needs its own package.",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N.")

    @model_validator(mode="after")
    def _check_ramp(self) -> TrainingConfig:
        start = self.batch_tokens_start
        if start is not None and self.batch_tokens % start:
            raise ValueError(f"batch_tokens {self.batch_tokens} is not a multiple of batch_tokens_start {start}")
        return self
