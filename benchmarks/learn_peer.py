"""The peer of `learn.py`: transformers' BertForMaskedLM as its `run_mlm.py` trains it, for a given time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader
from train_step import synchronize
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

from maskwright.data.shards import TOKENIZER_FOLDER, PreparedShards
from maskwright.training.compute.precision import Precision

NUM_COMPILING = 3
"""Steps before the clock starts: the first ones wait for the compiler."""
NUM_STRETCHES = 5
"""A run is measured after each of them but the last, which is for the caller."""


@dataclass(frozen=True)
class PeerSettings:
    seconds: float
    seed: int
    device: str
    precision: str
    is_compiled: bool = False
    row_length: int = 128
    rows: int = 256
    learning_rate: float = 5e-4
    warm_up: float = 0.05
    num_layers: int = 6
    hidden_size: int = 512
    num_workers: int = min(4, os.cpu_count() or 1)


@dataclass(frozen=True)
class PeerRun:
    folder: Path
    tokens: int
    steps: int
    first_step_s: float
    curve: list[tuple[float, int, float]]
    """Seconds, tokens, held-out loss."""


def train_peer(prepared: Path, folder: Path, settings: PeerSettings, measure: Callable[[], float]) -> PeerRun:
    """Train and save; rows are the documents one after another, cut at the row length, as `run_mlm.py` groups them.

    `measure` gives the held-out loss of what is saved; the clock stands still for it.
    """
    torch.manual_seed(settings.seed)
    device = torch.device(settings.device)
    tokenizer = AutoTokenizer.from_pretrained(prepared / TOKENIZER_FOLDER)
    model = build_model(len(tokenizer), settings).to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), settings.learning_rate, weight_decay=0.01, fused=device.type == "cuda"
    )
    compiled: Any = torch.compile(model) if settings.is_compiled else model
    precision = Precision(settings.precision)
    precision.apply()
    batches = repeat_batches(join_documents(prepared, tokenizer, settings.row_length), tokenizer, settings)
    begun = time.monotonic()
    first_step_s = 0.0
    steps = tokens = 0
    curve: list[tuple[float, int, float]] = []

    def save() -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    while (progress := 0.0 if steps < NUM_COMPILING else (time.monotonic() - begun) / settings.seconds) < 1:
        batch = {name: tensor.to(device, non_blocking=True) for name, tensor in next(batches).items()}
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * compute_factor(progress, settings.warm_up)
        with precision.autocast(device):
            loss = compiled(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        tokens += batch["input_ids"].numel()
        if steps % 10 == 0 or steps <= NUM_COMPILING:
            synchronize(settings.device)
        if steps == 1:
            first_step_s = time.monotonic() - begun
        if steps == NUM_COMPILING:
            begun = time.monotonic()
        if progress >= (len(curve) + 1) / NUM_STRETCHES:
            synchronize(settings.device)
            stopped = time.monotonic()
            save()
            curve.append((stopped - begun, tokens, measure()))
            begun += time.monotonic() - stopped
    save()
    return PeerRun(folder, tokens, steps, first_step_s, curve)


def build_model(vocab_size: int, settings: PeerSettings) -> BertForMaskedLM:
    shape = BertConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.hidden_size // 64,
        intermediate_size=4 * settings.hidden_size,
        max_position_embeddings=512,
    )
    return BertForMaskedLM(shape)


def compute_factor(progress: float, warm_up: float) -> float:
    """Up in a straight line, then down in one."""
    return progress / warm_up if progress < warm_up else (1 - progress) / (1 - warm_up)


def join_documents(prepared: Path, tokenizer: Any, row_length: int) -> NDArray[np.int64]:
    """(rows, row length): all documents with their two special tokens, what is left over at the end dropped."""
    shards = PreparedShards(prepared, "train")
    parts = []
    for number in range(shards.num_shards):
        store = shards.store(number)
        starts, ends = store.offsets[:-1], store.offsets[1:]
        places = np.stack([starts, ends], axis=1).flatten()
        specials = np.tile([tokenizer.cls_token_id, tokenizer.sep_token_id], len(starts))
        parts.append(np.insert(store.ids.astype(np.int64), places, specials))
    ids = np.concatenate(parts)
    return ids[: len(ids) // row_length * row_length].reshape(-1, row_length)


def repeat_batches(rows: NDArray[np.int64], tokenizer: Any, settings: PeerSettings) -> Iterator[dict[str, Any]]:
    """Epoch after epoch in a new order, masked by transformers' collator in worker processes."""
    loader: Any = DataLoader(
        [{"input_ids": row} for row in rows],  # type: ignore[arg-type]
        batch_size=settings.rows,
        shuffle=True,
        drop_last=True,
        num_workers=settings.num_workers,
        collate_fn=DataCollatorForLanguageModeling(tokenizer),
        pin_memory=settings.device.startswith("cuda"),
        persistent_workers=settings.num_workers > 0,
    )
    while True:
        for batch in loader:
            yield {name: batch[name] for name in ("input_ids", "labels")}
