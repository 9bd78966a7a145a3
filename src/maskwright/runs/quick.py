"""The two one-call helpers: a dataset from a text file, and a model ready to fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from maskwright.data.loader import PackedLoader
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.inputs import pack_documents
from maskwright.runs.trainer import Trainer
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.text.corpus import ReadingReport, read_lines
from maskwright.text.tokenizer import as_tokenizer

PaddedLoader = DataLoader[dict[str, Tensor]]


@overload
def create_mlm_dataset(
    text_file: str | Path | Sequence[str],
    tokenizer: Any,
    batch_size: int = ...,
    max_length: int = ...,
    buffer_size: int = ...,
    *,
    packed: Literal[True] = ...,
    seed: int = ...,
) -> PackedLoader: ...
@overload
def create_mlm_dataset(
    text_file: str | Path | Sequence[str],
    tokenizer: Any,
    batch_size: int = ...,
    max_length: int = ...,
    buffer_size: int = ...,
    *,
    packed: Literal[False],
    seed: int = ...,
) -> PaddedLoader: ...
def create_mlm_dataset(
    text_file: str | Path | Sequence[str],
    tokenizer: Any,
    batch_size: int = 32,
    max_length: int = 128,
    buffer_size: int = 10_000,
    *,
    packed: bool = True,
    seed: int = 0,
) -> PackedLoader | PaddedLoader:
    """Batches of a text file with one sentence per line, or of a list of sentences.

    Texts are tokenized once, shuffled anew each epoch and built ahead. Packed (for our encoders and Trainer), a batch
    is `batch_size` rows of `max_length` tokens, several sentences to a row, `buffer_size` shuffled sentences packed
    together. With `packed=False` it is a dictionary of `input_ids`, `attention_mask` and `token_type_ids` with one
    sentence per row, for loops and encoders of your own.
    """
    tokenizer = as_tokenizer(tokenizer)
    sentences = _read_sentences(text_file) if isinstance(text_file, str | Path) else text_file
    loader = pack_documents(
        sentences, tokenizer, row_length=max_length, rows_per_batch=batch_size, seed=seed, window=buffer_size
    )
    return loader if packed else _PaddedSamples(loader).batches(batch_size, seed)


def create_mlm_training_model(
    encoder: nn.Module,
    vocab_size: int,
    mask_token_id: int,
    special_token_ids: Sequence[int] = (),
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    seed: int = 0,
    **model_arguments: Any,
) -> Trainer:
    """A `MaskedLanguageModel` with AdamW and a warm-up and cosine schedule: `.fit(...)` trains it, `.model` is it."""
    model = MaskedLanguageModel(
        encoder, vocab_size, mask_token_id=mask_token_id, special_token_ids=special_token_ids, **model_arguments
    )
    optimizer = OptimizerConfig(type="adamw", learning_rate=learning_rate, weight_decay=weight_decay)
    return Trainer(model, optimizer, ScheduleConfig(), TrainingConfig(), seed=seed)


def _read_sentences(text_file: str | Path) -> list[str]:
    report = ReadingReport()
    sentences = list(read_lines(text_file, report))
    for warning in report.warnings(Path(text_file)):
        warnings.warn(warning, stacklevel=3)
    return sentences


class _PaddedSamples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The samples of a loader one by one, each padded to a row."""

    def __init__(self, loader: PackedLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader.samples)

    def __getitem__(self, sample: int) -> dict[str, Tensor]:
        row = self.loader.build_batch([[sample]])
        return {
            "input_ids": row.input_ids[0],
            "attention_mask": (~row.is_padding[0]).long(),
            "token_type_ids": torch.zeros_like(row.input_ids[0]),
        }

    def batches(self, batch_size: int, seed: int) -> PaddedLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(self, batch_size=batch_size, shuffle=True, drop_last=False, generator=generator)
