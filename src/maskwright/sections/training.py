"""Optimizer, learning-rate schedule and training loop."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from maskwright.sections.base import Section
from maskwright.sections.synonyms import SynonymsOfTraining


class OptimizerConfig(Section):
    type: Literal["adamw", "stable_adamw", "muon", "lamb", "novograd", "lion", "sgd"] = Field(
        default="adamw", description="The optimizer; muon uses Muon for weight matrices and AdamW for the rest."
    )
    learning_rate: float = Field(
        default=5e-5, gt=0, description="Peak learning rate; with muon, that of the AdamW part."
    )
    muon_learning_rate: float = Field(
        default=0.02, gt=0, description="muon: peak learning rate of the weight matrices."
    )
    scale_with_processes: Literal["none", "linear", "sqrt"] = Field(
        default="none", description="Multiply the learning rates by the number of processes, or by its square root."
    )
    weight_decay: float = Field(
        default=0.01, ge=0, description="Weight decay of weight matrices; norms and biases have none."
    )
    embedding_decay: float = Field(default=0.0, ge=0, description="Weight decay of embeddings.")
    beta1: float | None = Field(
        default=None, ge=0, lt=1, description="Decay of the first moment; unset: 0.9, for novograd 0.95. Not for sgd."
    )
    beta2: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Decay of the second moment, for lion of the momentum; unset: 0.999 for adamw, muon and"
        " lamb, 0.98 for stable_adamw and novograd, 0.99 for lion. Not for sgd.",
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="Added to the denominator of the update; unset: 1e-8 for adamw, muon and novograd, 1e-6 for"
        " stable_adamw and lamb. Not for lion and sgd.",
    )
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="sgd and muon: decay of the momentum; unset: 0.9 for sgd, 0.95 for muon."
    )
    gradient_clipping_by_norm: float | None = Field(
        default=1.0, gt=0, description="Clip gradients to this norm; null: no clipping."
    )


class ScheduleConfig(Section):
    type: Literal["constant", "linear", "cosine_decay", "polynomial_decay", "wsd"] = Field(
        default="cosine_decay", description="Shape after the warm-up; wsd stays at the peak, then decays linearly."
    )
    decay_steps: int | None = Field(
        default=None,
        ge=1,
        description="The step at which the schedule ends, warm-up included; the learning rate is constant afterwards."
        " Unset: the end of the run, whether limited by steps, epochs, tokens or seconds.",
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, description="Learning-rate warm-up in steps; unset: warmup_share of the run."
    )
    warmup_share: float = Field(
        default=0.1, ge=0, lt=1, description="Learning-rate warm-up as a share of the run, or of decay_steps."
    )
    warmup_start_lr: float = Field(default=1e-8, ge=0, description="Learning rate of the first step.")
    alpha: float = Field(default=1e-6, ge=0, le=1, description="Final learning rate, as a fraction of the peak.")
    power: float = Field(default=1.0, gt=0, description="polynomial_decay: the exponent; 1 is linear.")
    decay_share: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="wsd: share of the run, or of decay_steps, at its end in which the rate decays.",
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
    mode: Literal["mlm", "clm", "hybrid", "rtd", "diffusion"] = Field(
        default="mlm",
        description="The objective: masked tokens (mlm), next tokens (clm), some samples of each (hybrid),"
        " replaced-token detection (rtd), or any share of masked tokens (diffusion).",
    )
    causal_share: float = Field(
        default=0.5, ge=0, le=1, description="hybrid: share of samples trained by next-token prediction."
    )
    epochs: int = Field(default=3, ge=1, description="Passes over the data.")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after this many steps.")
    max_tokens: int | None = Field(default=None, ge=1, description="Stop after this many tokens, padding included.")
    max_seconds: float | None = Field(
        default=None,
        gt=0,
        description="Stop after this much training time, compilation excluded; schedules follow it.",
    )
    initial_epoch: int = Field(
        default=0, ge=0, description="Number of the first epoch, to continue after earlier runs."
    )
    batch_tokens: int = Field(
        default=8192, ge=1, description="Tokens per optimizer step over all processes, padding included."
    )
    micro_batch_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens per forward pass in one process (gradient accumulation); unset: the whole batch.",
    )
    batch_tokens_start: int | None = Field(
        default=None,
        ge=1,
        description="Tokens per step at the start, growing to batch_tokens; unset: no growth.",
    )
    batch_ramp_share: float = Field(
        default=0.2, gt=0, le=1, description="Share of the run in which the batch size grows."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "tf32", "fp8"] = Field(
        default="auto", description="dtype of the matrix products; auto measures once which is fastest on this machine."
    )
    compile: bool | None = Field(
        default=None,
        description="Compile the layers, which takes some seconds at the start; unset: on for GPUs, off for CPUs and in"
        " fine-tuning.",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="Recompute activations in the backward pass instead of keeping them: less memory, more time.",
    )
    average_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="Decay of a moving average of the weights, such as 0.999, which is evaluated and saved at the end;"
        " unset: no average.",
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        default="ddp",
        description="With several processes: replicate the model in each (ddp), or shard it over them (fsdp).",
    )
    gradient_dtype: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="With several processes: dtype in which gradients are exchanged and summed; bf16 moves half the"
        " bytes and keeps 8 bits of each.",
    )
    dead_process_seconds: float = Field(
        default=60.0,
        gt=0,
        description="With several processes: stop if one gives no sign of life for this many seconds.",
    )
    max_bad_steps: int = Field(
        default=10, ge=1, description="Stop after this many steps in a row whose loss or gradient is NaN or infinite."
    )
    rollback_deviations: float | None = Field(
        default=None,
        gt=0,
        description="Return to the last checkpoint if the loss jumps by this many standard deviations; unset: never.",
    )
    log_every_steps: int = Field(default=10, ge=1, description="Steps between lines of metrics.jsonl.")
    checkpoint_every_steps: int = Field(default=500, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(default=2, ge=1, description="How many of the newest checkpoints to keep.")
    keep_every_steps: int | None = Field(
        default=None, ge=1, description="Also keep the checkpoint of every n-th step permanently; unset: none."
    )
    keep_best: bool = Field(default=False, description="Also keep the checkpoint with the lowest validation loss.")
    keep_optimizer: bool = Field(
        default=False, description="If model.from is a checkpoint: continue with its optimizer state too."
    )
    evaluate_every_steps: int | None = Field(
        default=None,
        ge=1,
        description="Steps between evaluations on the validation set, besides the end of each epoch.",
    )
    evaluate_max_batches: int | None = Field(
        default=None,
        ge=1,
        description="Batches per evaluation; unset: all. The final evaluation always uses all.",
    )
    final_evaluation: bool = Field(default=True, description="Evaluate the whole validation set at the end.")
    early_stopping_patience: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many epochs without a better validation loss, and restore the best weights;"
        " unset: never.",
    )
    tensorboard: bool = Field(default=False, description="Write TensorBoard events to the run folder.")
    log_to: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        default_factory=list,
        description="Trackers for the metrics, besides the run folder, such as [wandb]; each needs its own package.",
    )
    device: str = Field(default="auto", description="auto (a GPU if there is one), cpu, cuda, cuda:N or mps.")

    @model_validator(mode="after")
    def _check_ramp(self) -> TrainingConfig:
        start = self.batch_tokens_start
        if start is not None and self.batch_tokens % start:
            raise ValueError(f"batch_tokens {self.batch_tokens} is not a multiple of batch_tokens_start {start}")
        return self
