"""From a configuration to what a model learns from: documents, tokenizer and loaders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.config import BUILTIN_CORPUS, Config
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.models.pretrained import resolve_folder
from maskwright.text.builtin import read_python_documentation
from maskwright.text.corpus import ReadingReport, read_lines
from maskwright.text.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.training import train_tokenizer

Say = Callable[[str], None]


@dataclass(frozen=True)
class Documents:
    train: list[str]
    validation: list[str]


def read_documents(config: Config, warn: Say) -> Documents:
    """The training and held-out texts."""
    documents = _read_source(config.data.train, warn)
    if config.data.validation is not None:
        return Documents(documents, _read_source(config.data.validation, warn))
    return split_documents(documents, config.data.validation_share)


def split_documents(documents: list[str], share: float) -> Documents:
    """Hold out a share by a hash of each text: the same texts whatever their order, and no text on both sides."""
    limit = int(share * (1 << 64))
    hashes = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) for text in documents]
    if len(set(hashes)) < 2:
        raise InputError(
            f"the training text has {len(documents)} document(s), too few to hold some out; give data.validation,"
            " or put one document on each line"
        )
    limit = max(limit, min(hashes) + 1)
    if limit > max(hashes):
        limit = max(hashes)
    train = [text for text, digest in zip(documents, hashes, strict=True) if digest >= limit]
    validation = [text for text, digest in zip(documents, hashes, strict=True) if digest < limit]
    return Documents(train, validation)


def get_tokenizer(config: Config, documents: list[str], kept: Path | None) -> Tokenizer:
    """The tokenizer `kept` by a run that goes on, else the configured one, the starting model's, or one trained."""
    if kept is not None and (kept / "tokenizer.json").is_file():
        return load_tokenizer(kept)
    if config.tokenizer.path is not None:
        return load_tokenizer(config.tokenizer.path)
    if config.model.from_ is not None:
        return load_tokenizer(resolve_folder(config.model.from_))
    settings = config.tokenizer
    return train_tokenizer(documents, settings.type, settings.vocab_size, settings.lowercase, settings.min_frequency)


def build_loader(config: Config, tokenizer: Tokenizer, documents: list[str], shuffle: bool) -> PackedLoader:
    return pack_documents(
        documents,
        tokenizer,
        row_length=config.data.max_length,
        rows_per_batch=max(1, config.training.batch_tokens // config.data.max_length),
        seed=config.run.seed,
        window=config.data.packing_window,
        shuffle=shuffle,
    )


def pack_documents(documents: Sequence[str], tokenizer: Tokenizer, **options: Any) -> PackedLoader:
    """A loader over texts, with the tokenizer's special tokens; `options` are those of `PackedLoader`."""
    return PackedLoader(
        TokenStore.from_documents(tokenizer.encode_batch(documents), tokenizer.vocab_size),
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )


def _read_source(source: str, warn: Say) -> list[str]:
    if source == BUILTIN_CORPUS:
        return read_python_documentation()
    report = ReadingReport()
    documents = list(read_lines(source, report))
    for warning in report.warnings(Path(source)):
        warn(warning)
    return documents
