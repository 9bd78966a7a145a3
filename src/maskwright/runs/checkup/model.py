"""The model, the numbers it computes in and the device it runs on."""

from __future__ import annotations

import torch
from torch import nn

from maskwright.config import Config
from maskwright.models.any_encoder import find_hidden_size
from maskwright.runs.checkup.findings import Finding
from maskwright.runs.model import TrainedModel
from maskwright.training.engine import Engine
from maskwright.training.precision import choose_precision


def check_model(config: Config, model: TrainedModel) -> Finding:
    num_parameters = sum(param.numel() for param in model.parameters())
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    share = sum(table.numel() for table in tables) / num_parameters
    layers = getattr(getattr(model.encoder, "config", None), "num_hidden_layers", "?")
    name = f"{config.model.family} {config.model.variant}" if config.model.from_ is None else config.model.from_
    text = (
        f"{name}, {layers} layers x {find_hidden_size(model.encoder)},"
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
    """On a CPU, fewer bits than `auto` would take are nearly always a mistake, and one that costs most of the speed."""
    precision = engine.precision
    text, advice = f"{precision.name}, {precision.reason}", None
    if engine.device.type == "cpu" and precision.name != "fp32":
        fastest = choose_precision("auto", engine.device)
        if fastest.name != precision.name:
            advice = f"training.precision=auto would take {fastest.name} here: {fastest.reason}"
    return Finding.judge("precision", text, advice)


def check_attention(kernel: str) -> Finding:
    return Finding("attention", "OK", f"within documents, by {kernel}, as seen in a pass")
