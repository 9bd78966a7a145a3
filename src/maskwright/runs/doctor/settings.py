"""Checks of unusual settings, the model, its dtype and device, and free disk space for checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from maskwright.config import Config
from maskwright.errors import InputError, RunError
from maskwright.models.any_encoder import find_hidden_size
from maskwright.runs.doctor.findings import Finding, format_bytes
from maskwright.runs.doctor.memory import MemoryNeed
from maskwright.runs.model import TrainedModel, describe_start
from maskwright.runs.resume import find_checkpoint
from maskwright.runs.run_store import RunStore
from maskwright.sections.training import TrainingConfig
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.precision import choose_precision
from maskwright.training.engine import Engine
from maskwright.training.trackers import check_trackers

_LEAST_MASKED, _MOST_MASKED = 0.05, 0.5
_USUAL_RATES = {
    "adamw": (1e-6, 5e-3),
    "stable_adamw": (1e-6, 5e-3),
    "muon": (1e-6, 1e-2),
    "lamb": (1e-5, 2e-2),
    "novograd": (1e-5, 5e-2),
    "lion": (1e-7, 1e-3),
    "sgd": (1e-4, 2.0),
}
"""Peak learning rates that are in use for encoders, from adapting a large model to training a tiny one."""
_USUAL_MUON_RATES = (1e-4, 0.1)


def check_settings(config: Config) -> list[Finding]:
    return [*_check_masking(config), *_check_rates(config), *_check_requirements(config)]


def _check_masking(config: Config) -> Iterator[Finding]:
    masking = config.masking
    for key, ratio in (("ratio", masking.ratio), ("final_ratio", masking.final_ratio)):
        if ratio is not None and not _LEAST_MASKED <= ratio <= _MOST_MASKED:
            yield Finding(
                "masking",
                "warning",
                f"masking.{key} is {ratio:g}, usual are {_LEAST_MASKED:g} to {_MOST_MASKED:g}",
                "take 0.15 to 0.4: more leaves too little to guess from, less teaches too little",
            )


def _check_rates(config: Config) -> Iterator[Finding]:
    optimizer = config.optimizer
    rates = [("learning_rate", optimizer.learning_rate, _USUAL_RATES[optimizer.type])]
    if optimizer.type == "muon":
        rates.append(("muon_learning_rate", optimizer.muon_learning_rate, _USUAL_MUON_RATES))
    for key, rate, (least, most) in rates:
        if not least <= rate <= most:
            yield Finding(
                "optimizer",
                "warning",
                f"optimizer.{key} is {rate:g}, for {optimizer.type} {least:g} to {most:g} are usual",
                f"{'lower' if rate > most else 'raise'} it unless you have tried this value",
            )


def _check_requirements(config: Config) -> Iterator[Finding]:
    """Checks that a run makes at its start."""
    training = config.training
    checks: list[Callable[[], object]] = [lambda: check_trackers(training.log_to)]
    if training.keep_optimizer:
        checks.append(lambda: find_checkpoint(config.model.from_))
    store = RunStore.find(config)
    if store is not None:
        checks.append(lambda: store.check(overwrite=False))
    for check in checks:
        try:
            check()
        except (InputError, RunError) as error:
            yield Finding.from_error("settings", error)
    if training.epochs <= training.initial_epoch:
        yield Finding(
            "settings",
            "problem",
            f"training.epochs is {training.epochs}, training.initial_epoch {training.initial_epoch}",
            "make epochs, the number of the last, the larger",
        )


_TIGHT = 0.9


def estimate_checkpoint_bytes(need: MemoryNeed, tokenizer: Tokenizer) -> int:
    """Weights with their average, optimizer state and tokenizer."""
    return need.weights + need.optimizer + len(tokenizer.backend.to_str(pretty=True).encode())


def count_checkpoints(training: TrainingConfig, num_steps: int) -> int:
    """The largest number of checkpoints at a time, with the one being written."""
    milestones = 0 if training.keep_every_steps is None else num_steps // training.keep_every_steps
    bests = training.keep_best + (training.early_stopping_patience is not None)
    written = num_steps // training.checkpoint_every_steps + 1
    return min(training.keep_checkpoints + milestones + bests + 1, written + bests)


def check_disk(folder: Path, checkpoint_bytes: int, num_checkpoints: int, model_bytes: int) -> Finding:
    """The final model comes on top; `folder` need not exist yet."""
    free = shutil.disk_usage(find_existing(folder)).free
    needed = checkpoint_bytes * num_checkpoints + model_bytes
    text = (
        f"checkpoints of {format_bytes(checkpoint_bytes)}, up to {num_checkpoints:,} at a time, and the model:"
        f" {format_bytes(needed)} of {format_bytes(free)} free at {folder}"
    )
    advice = "set run.out to a larger disk, or keep fewer (training.keep_checkpoints, training.keep_every_steps)"
    is_tight = needed > _TIGHT * free
    return Finding.judge("disk", text, advice if is_tight else None, "problem" if needed > free else "warning")


def find_existing(folder: Path) -> Path:
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())


def check_model(config: Config, model: TrainedModel) -> Finding:
    num_parameters = sum(param.numel() for param in model.parameters())
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    share = sum(table.numel() for table in tables) / num_parameters
    layers = getattr(getattr(model.encoder, "config", None), "num_hidden_layers", "?")
    text = (
        f"{describe_start(config)}, {layers} layers x {find_hidden_size(model.encoder)},"
        f" {num_parameters:,} parameters, {share:.0%} of them embeddings"
    )
    return Finding("model", "OK", text)


def check_device(config: Config, engine: Engine) -> Finding:
    """One process uses one GPU."""
    num_gpus = torch.cuda.device_count() if engine.device.type == "cuda" else 0
    if not num_gpus:
        return Finding("device", "OK", f"CPU, {torch.get_num_threads()} thread(s)")
    name = torch.cuda.get_device_name(engine.device)
    if num_gpus == 1 or config.training.device != "auto":
        return Finding("device", "OK", f"{name}, one of {num_gpus}")
    command = f"torchrun --nproc-per-node {num_gpus} -m maskwright train ..."
    return Finding("device", "OK", f"{name}, one of {num_gpus}; all of them train together with: {command}")


def check_precision(engine: Engine) -> Finding:
    """On a CPU, a smaller dtype than `auto` would choose is nearly always a mistake, and very slow."""
    precision = engine.precision
    text, advice = f"{precision.name}, {precision.reason}", None
    if engine.device.type == "cpu" and precision.name != "fp32":
        fastest = choose_precision("auto", engine.device, find_hidden_size(engine.model.encoder))
        if fastest.name != precision.name:
            advice = f"training.precision=auto would take {fastest.name} here: {fastest.reason}"
    return Finding.judge("precision", text, advice)


def check_attention(kernel: str) -> Finding:
    return Finding("attention", "OK", f"within documents, by {kernel}, as seen in a pass")
