"""The two sides of `train_step.py`: transformers' training step and ours, on the same texts."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

import maskwright as mw
from maskwright.batch import to_padded
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.masking.tokens import CorruptedBatch
from maskwright.training.compute.precision import Precision
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState

CLS, SEP, PAD, MASK, FIRST = 2, 3, 0, 4, 5
RATIO, RATE = 0.15, 1e-4
COMPARED_TOKENS = {"cuda": 8192, "cpu": 1024}
FAMILIES = {"bert": mw.BERT, "modernbert": mw.ModernBERT}


def make_documents(num_documents: int, length: int, vocab_size: int, is_dense: bool) -> list[list[int]]:
    random = np.random.default_rng(0)
    lengths = np.full(num_documents, length - 2)
    if not is_dense:
        lengths = np.clip(np.exp(random.normal(np.log(0.3 * length), 0.6, num_documents)), 3, length - 2).astype(int)
    return [random.integers(FIRST, vocab_size, size).tolist() for size in lengths]


def pad_rows(documents: Sequence[list[int]], number: int, num_rows: int, length: int) -> list[list[int]]:
    """The rows of one batch as a peer takes them, a document each."""
    start = number * num_rows % (len(documents) - num_rows + 1)
    rows = [[CLS, *ids, SEP] for ids in documents[start : start + num_rows]]
    return [row + [PAD] * (length - len(row)) for row in rows]


class Peer:
    """transformers: padded batches, the head on every token, its Trainer's fused AdamW and clipping."""

    def __init__(self, arguments: argparse.Namespace, is_compiled: bool, dropout: float) -> None:
        self.device = torch.device(arguments.device)
        self.model = build_peer_model(arguments, dropout).to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.0, fused=True)
        self.run: Any = torch.compile(self.model) if is_compiled else self.model
        self.precision = Precision(arguments.precision)
        self.precision.apply()
        self.vocab_size, self.length, self.rows = arguments.vocab_size, arguments.length, arguments.rows

    def make_batches(self, documents: Sequence[list[int]], num_batches: int) -> list[Any]:
        """Padded to the row length and masked by its collator, ahead of time, as its workers would."""
        collator = DataCollatorForLanguageModeling(build_peer_tokenizer(self.vocab_size))
        batches = []
        for number in range(num_batches):
            padded = pad_rows(documents, number, self.rows, self.length)
            masks = [[int(token_id != PAD) for token_id in row] for row in padded]
            features = [{"input_ids": row, "attention_mask": mask} for row, mask in zip(padded, masks, strict=True)]
            batches.append({name: pin(tensor) for name, tensor in collator(features).items()})
        return batches

    def step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        on_device = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        with self.precision.autocast(self.device):
            loss = self.run(**on_device).loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def count_tokens(self, batch: dict[str, torch.Tensor]) -> tuple[int, int]:
        """All tokens and real ones."""
        return batch["input_ids"].numel(), int(batch["attention_mask"].sum())


class Ours:
    """Packed rows, the head on masked tokens only."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        is_compiled: bool,
        dropout: float,
        model: mw.MaskedLanguageModel | None = None,
    ) -> None:
        self.device = torch.device(arguments.device)
        self.model = model or build_model(arguments, dropout)
        training = mw.TrainingConfig(device=arguments.device, precision=arguments.precision, compile=is_compiled)
        optimizer = mw.OptimizerConfig(learning_rate=RATE, weight_decay=0.0)
        self.train_step = Engine(self.model, optimizer, mw.ScheduleConfig(), training, seed=0).begin(
            TrainingState(), print
        )
        self.vocab_size, self.length, self.rows = arguments.vocab_size, arguments.length, arguments.rows

    def make_batches(self, documents: Sequence[list[int]], num_batches: int) -> list[Any]:
        loader = PackedLoader(
            TokenStore.from_documents(documents, self.vocab_size),
            cls_token_id=CLS,
            sep_token_id=SEP,
            pad_token_id=PAD,
            row_length=self.length,
            rows_per_batch=self.rows,
        )
        whole = [batch for batch in loader if batch.num_rows == self.rows]
        if not whole:
            raise SystemExit("there are too few documents for a packed batch; raise --rows")
        return [whole[number % len(whole)] for number in range(num_batches)]

    def step(self, batch: mw.PackedBatch) -> torch.Tensor:
        on_device = batch.to(self.device, non_blocking=True)
        result = self.train_step(on_device, step=0, epoch=0, mask_ratio=RATIO)
        return result.sums[0] / result.sums[1]

    def count_tokens(self, batch: mw.PackedBatch) -> tuple[int, int]:
        return batch.input_ids.numel(), batch.num_tokens()


def build_model(arguments: argparse.Namespace, dropout: float) -> mw.MaskedLanguageModel:
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    if arguments.family == "modernbert":
        rates = ("embedding_dropout", "attention_dropout", "mlp_dropout")
    encoder = FAMILIES[arguments.family].from_variant(
        arguments.variant,
        vocab_size=arguments.vocab_size,
        max_position_embeddings=arguments.length,
        **dict.fromkeys(rates, dropout),
    )
    return mw.MaskedLanguageModel(
        encoder, arguments.vocab_size, mask_token_id=MASK, special_token_ids=range(FIRST), mlm_head_dropout=0.0
    )


def build_peer_model(arguments: argparse.Namespace, dropout: float) -> torch.nn.Module:
    shape = FAMILIES[arguments.family].build_config(arguments.variant)
    sizes = {
        name: getattr(shape, name)
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    sizes |= {"vocab_size": arguments.vocab_size, "max_position_embeddings": arguments.length, "pad_token_id": PAD}
    if arguments.family == "modernbert":
        rates = dict.fromkeys(("embedding_dropout", "attention_dropout", "mlp_dropout"), dropout)
        return ModernBertForMaskedLM(ModernBertConfig(**sizes, **rates, cls_token_id=CLS, sep_token_id=SEP))
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return BertForMaskedLM(BertConfig(**sizes, **rates))


def build_peer_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(FIRST, vocab_size))]
    backend = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def compare_losses(
    arguments: argparse.Namespace, documents: Sequence[list[int]], num_steps: int
) -> list[tuple[float, float]]:
    """The losses of both sides, step by step, from the same weights on the same masked tokens, without dropout.

    Batches are small, since a packed one holds several times as many documents as the peer could take padded.
    """
    num_tokens = COMPARED_TOKENS[torch.device(arguments.device).type]
    rows = max(1, min(arguments.rows, num_tokens // arguments.length))
    arguments = argparse.Namespace(**{**vars(arguments), "rows": rows})
    peer = Peer(arguments, is_compiled=False, dropout=0.0)
    with tempfile.TemporaryDirectory() as folder:
        peer.model.save_pretrained(folder)
        build_peer_tokenizer(arguments.vocab_size).save_pretrained(folder)
        model = mw.MaskedLanguageModel.from_pretrained(Path(folder))
    model.mlm_head_dropout = 0.0  # the peer's head has none
    ours = Ours(arguments, is_compiled=arguments.device.startswith("cuda"), dropout=0.0, model=model)
    losses = []
    for batch in ours.make_batches(documents, num_steps):
        on_device = batch.to(ours.device)
        corrupted = model.corrupt(on_device, seed=0, epoch=0, ratio=RATIO)
        theirs = peer.step(unpack(corrupted))
        losses.append((float(theirs), float(ours.step(batch))))
    return losses


def unpack(corrupted: CorruptedBatch) -> dict[str, torch.Tensor]:
    """The same masked documents as a padded batch with labels."""
    inputs, index = to_padded(corrupted.batch)
    is_real = ~corrupted.batch.is_padding.flatten()
    labels = torch.full_like(inputs["input_ids"], -100).flatten()
    labels[index[is_real]] = corrupted.labels.flatten()[is_real]
    return {**inputs, "labels": labels.view_as(inputs["input_ids"])}


def pin(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if torch.cuda.is_available() else tensor
