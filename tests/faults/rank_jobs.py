"""Small trainings to run in one process or in several, with everything that must agree written down."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.masking.strategies import build_masker
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import DiffusionLanguageModel, MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.batches import iterate_batches
from maskwright.training.callbacks import EarlyStopping
from maskwright.training.distributed.world import leave_world
from maskwright.training.held_out import evaluate
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer

VOCAB_SIZE = 60
SEED = 5
TIMED = ("tokens_per_s", "elapsed_s", "data_wait")


def build_model(kind: type[MaskedLanguageModel] = MaskedLanguageModel) -> MaskedLanguageModel:
    torch.manual_seed(0)
    encoder = BERT.from_variant(
        "tiny",
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return kind(encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0, mask_ratio=0.3)


def build_loader(num_documents: int, rows_per_batch: int, seed: int = 0) -> PackedLoader:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, 12, num_documents)
    documents = [generator.integers(5, VOCAB_SIZE, length).tolist() for length in lengths]
    store = TokenStore.from_documents(documents, VOCAB_SIZE)
    return PackedLoader(
        store, cls_token_id=2, sep_token_id=3, pad_token_id=0, row_length=16, rows_per_batch=rows_per_batch, seed=seed
    )


class Recorder(Callback):
    """Log lines and evaluations of the main process; stops or saves where the test asks."""

    def __init__(self, stop_at: int | None, stop_after_epoch: int | None) -> None:
        self.stop_at, self.stop_after_epoch = stop_at, stop_after_epoch
        self.lines: list[dict[str, float]] = []

    def on_log(self, metrics: Any) -> None:
        self.lines.append({name: value for name, value in metrics.items() if name not in TIMED})

    def on_evaluation(self, metrics: Any) -> None:
        self.lines.append(dict(metrics))

    def on_step_end(self, step: int) -> None:
        if step == self.stop_at:
            self.trainer.stop_training = True

    def on_epoch_end(self, epoch: int, metrics: Any) -> None:
        if epoch == self.stop_after_epoch:
            self.trainer.stop_training = True


class SaveAt(Callback):
    on_every_rank = True

    def __init__(self, folder: Path, step: int | None) -> None:
        self.folder, self.step = folder, step

    def on_step_end(self, step: int) -> None:
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)
            self.trainer.finish_writing()


def record_masks(model: MaskedLanguageModel, masks: list[list[list[int]]]) -> None:
    """Note (sample, position) of every masked token of every batch that is trained on."""
    corrupt = model.corrupt

    def recording(batch: Any, seed: int, *arguments: Any) -> Any:
        corrupted = corrupt(batch, seed, *arguments)
        if seed == SEED:
            chosen = torch.stack([batch.sample_ids, batch.positions], -1)[corrupted.selected]
            masks.append(sorted(chosen.tolist()))
        return corrupted

    model.corrupt = recording  # type: ignore[method-assign]


def poison(model: MaskedLanguageModel, call: int, rank: int) -> None:
    """Make the loss of one rank's `call`-th forward pass in training NaN."""
    loss_sums, calls = type(model).loss_sums, []

    def poisoned(self: Any, corrupted: Any) -> Any:
        sums = loss_sums(self, corrupted)
        if self.training:
            calls.append(1)
            if len(calls) == call and int(os.environ.get("RANK", "0")) == rank:
                return replace(sums, losses=sums.losses * math.nan)
        return sums

    # On the class: FSDP trains a copy of the model.
    type(model).loss_sums = poisoned  # type: ignore[method-assign]


def train(
    folder: Path,
    name: str,
    optimizer: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    num_documents: int = 30,
    stop_at: int | None = None,
    stop_after_epoch: int | None = None,
    early_stopping: bool = False,
    save_at: int | None = None,
    resume: str | None = None,
    poison_call: int | None = None,
    is_diffusion: bool = False,
    strategy: str | None = None,
) -> Trainer:
    """Train in this process and those beside it, and write `name-rankN.json` and, the main one, the weights."""
    model = build_model(DiffusionLanguageModel if is_diffusion else MaskedLanguageModel)
    if strategy is not None:
        model.masker = build_masker(VOCAB_SIZE, 4, range(5), strategy=strategy, exponent=20.0, update_every_steps=2)
    original = type(model).loss_sums
    masks: list[list[list[int]]] = []
    record_masks(model, masks)
    if poison_call is not None:
        poison(model, poison_call, rank=1)
    settings = {"epochs": 2, "precision": "fp32", "log_every_steps": 1, "dead_process_seconds": 20.0, "device": "cpu"}
    settings |= training or {}
    # With a small epsilon Adam blows up what rounding leaves of a gradient of 0 to a step of full size.
    trainer = Trainer(
        model,
        OptimizerConfig(**({"learning_rate": 1e-2, "epsilon": 0.1} | (optimizer or {}))),
        ScheduleConfig(warmup_steps=2),
        TrainingConfig(**settings),
        seed=SEED,
    )
    recorder = Recorder(stop_at, stop_after_epoch)
    callbacks: list[Callback] = [recorder, SaveAt(folder / name, save_at)]
    if early_stopping:
        callbacks.append(EarlyStopping(patience=1, min_delta=100.0, restore_best_weights=True))
    if resume is not None:
        trainer.load_checkpoint(folder / resume)
    history = trainer.fit(
        build_loader(num_documents, 4), build_loader(11, 3, seed=1), callbacks=callbacks, verbose=False
    )
    type(model).loss_sums = original  # type: ignore[method-assign]
    held_out = iterate_batches(build_loader(11, 3, seed=1), world=trainer.world)
    final = evaluate(model, held_out, placed=trainer.engine.placed, world=trainer.world)
    figures = {"steps": trainer.state.step, "skipped": trainer.state.num_skipped, "final_loss": final.loss}
    facts = {"lines": recorder.lines, "history": history.history, "masks": masks, **figures}
    (folder / f"{name}-rank{trainer.world.rank}.json").write_text(json.dumps(facts))
    if trainer.world.is_main:
        save_file({key: tensor.clone() for key, tensor in model.state_dict().items()}, folder / f"{name}.safetensors")
    return trainer


def train_all(folder: str, variants: dict[str, dict[str, Any]]) -> None:
    """Several trainings one after the other, in the same processes."""
    torch.set_num_threads(1)
    for name, variant in variants.items():
        trainer = train(Path(folder), name, **variant)
    trainer.world.sum_facts([0.0])
    leave_world()


def train_compiled(folder: str) -> None:
    """With compiled layers, whose graphs run without kernels of their own, which would take a minute to build."""
    torch.compile = partial(torch.compile, backend="aot_eager")
    train_all(folder, {"compiled": {"training": {"compile": True}}})
