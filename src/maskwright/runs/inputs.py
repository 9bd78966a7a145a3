"""From a configuration to what a model learns from: a tokenizer and loaders."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.config import Config
from maskwright.data.given_pairs import GivenPairs
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import build_pairing
from maskwright.data.shards import (
    TOKENIZER_FOLDER,
    PreparedShards,
    Shards,
    StoresInMemory,
    is_prepared,
    read_manifest,
)
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.models.pretrained import resolve_folder
from maskwright.runs.augmented import AugmentedLoader
from maskwright.runs.pair_texts import encode_pairs, warn_of_losses
from maskwright.runs.texts import Documents, Say, read_documents
from maskwright.sections.data import QualityConfig, build_sources
from maskwright.text.encoding import encode_corpus
from maskwright.text.text_pairs import Document, TextPair, list_texts
from maskwright.text.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.training import train_tokenizer

_COUNTED_SHARDS = 32


@dataclass(frozen=True)
class TrainingData:
    """What a run learns from and is measured on."""

    tokenizer: Tokenizer
    train: PackedLoader
    validation: PackedLoader
    fingerprint: str
    """Changes with the texts and the tokenizer, so that a run is not resumed on others."""


def load_data(config: Config, kept_tokenizer: Path | None, warn: Say) -> TrainingData:
    """Open a prepared folder, or read and tokenize texts here; a run that goes on keeps its own tokenizer."""
    if isinstance(config.data.train, str) and is_prepared(config.data.train):
        return _open_prepared(config, Path(config.data.train))
    return _read_texts(config, kept_tokenizer, warn)


def _read_texts(config: Config, kept_tokenizer: Path | None, warn: Say) -> TrainingData:
    documents = read_documents(config, warn)
    tokenizer = get_tokenizer(config, [text for texts in documents.train for text in texts], kept_tokenizer)
    weights = [source.weight for source in build_sources(config.data.train)]
    shared = _loader_options(config, tokenizer) | ({"pairing": GivenPairs()} if documents.are_pairs else {})

    def encode(texts: Sequence[Sequence[str]]) -> Shards:
        return StoresInMemory([_encode(tokenizer, one, shared) for one in texts], weights)

    options = shared | {"shuffle": True}
    if config.augmentation.probability:
        train: PackedLoader = AugmentedLoader(documents.train, encode, config.augmentation, **options)
    else:
        train = PackedLoader(encode(documents.train), **options)
    validation = PackedLoader(_encode(tokenizer, documents.validation, shared), **shared, shuffle=False)
    warn_of_losses([train.shards, validation.shards], config.data.max_length, warn)
    return TrainingData(tokenizer, train, validation, _hash_texts(documents, tokenizer))


def _open_prepared(config: Config, folder: Path) -> TrainingData:
    if config.augmentation.probability:
        raise InputError(f"augmentation works on text, {folder} holds token ids; give the texts as data.train")
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    if config.tokenizer.path is not None:
        given = open_tokenizer(config.tokenizer.path)
        if given.backend.to_str() != tokenizer.backend.to_str():
            raise InputError(
                f"{folder} was prepared with another tokenizer than {config.tokenizer.path}; prepare it again"
            )
    if config.quality != QualityConfig():
        raise InputError(f"quality settings work on text, {folder} is prepared already; prepare it with them")
    manifests = [read_manifest(place) for place in (folder, _validation_folder(config, folder))]
    if manifests[0]["tokenizer_sha256"] != manifests[1]["tokenizer_sha256"]:
        raise InputError(f"{folder} and {config.data.validation} were prepared with different tokenizers")
    held_out = PreparedShards(_validation_folder(config, folder), "validation")
    if not held_out.num_tokens:
        raise InputError(f"{held_out.folder} holds no validation documents; prepare it with a validation share")
    learnt = PreparedShards(folder, "train")
    if not learnt.num_tokens:
        raise InputError(f"{folder} holds no training documents, all are held out; give it as data.validation")
    options = _loader_options(config, tokenizer)
    train = PackedLoader(learnt, **options, shuffle=True)
    fingerprint = "-".join(manifest["key"] for manifest in manifests)
    return TrainingData(tokenizer, train, PackedLoader(held_out, **options, shuffle=False), fingerprint)


def _hash_texts(documents: Documents, tokenizer: Tokenizer) -> str:
    digest = hashlib.blake2b(tokenizer.backend.to_str().encode(), digest_size=16)
    for texts in (*documents.train, documents.validation):
        for text in texts:
            digest.update(text.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def _validation_folder(config: Config, folder: Path) -> Path:
    if config.data.validation is None:
        return folder
    if not isinstance(config.data.validation, str) or not is_prepared(config.data.validation):
        raise InputError("data.train is prepared data; data.validation must be prepared data too, or unset")
    return Path(config.data.validation)


def get_tokenizer(config: Config, documents: list[str], kept: Path | None) -> Tokenizer:
    """The tokenizer `kept` by a run that goes on, else the configured one, the starting model's, or one trained."""
    if kept is not None and (kept / "tokenizer.json").is_file():
        return load_tokenizer(kept)
    if config.tokenizer.path is not None:
        return open_tokenizer(config.tokenizer.path)
    if config.model.from_ is not None:
        return open_tokenizer(config.model.from_)
    settings = config.tokenizer
    return train_tokenizer(documents, settings.type, settings.vocab_size, settings.lowercase, settings.min_frequency)


def open_tokenizer(name: str) -> Tokenizer:
    """A tokenizer's file or folder, or that of a run, a model or a hub id."""
    names_a_file = Path(name).is_file() or Path(name).suffix in (".json", ".txt")
    return load_tokenizer(name if names_a_file else resolve_folder(name))


def pack_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, warn: Say = lambda text: None, **options: Any
) -> PackedLoader:
    """A loader over texts, or over pairs of texts; `options` are those of `PackedLoader`."""
    num_pairs = sum(isinstance(document, TextPair) for document in documents)
    if num_pairs:
        if num_pairs < len(documents):
            raise InputError("some sources are pairs (second_column), others single texts; give one kind at a time")
        options["pairing"] = GivenPairs()
    loader = PackedLoader(_encode(tokenizer, list_texts(documents), options), **(_special_ids(tokenizer) | options))
    warn_of_losses([loader.shards], loader.row_length, warn)
    return loader


def count_tokens(loader: PackedLoader, vocab_size: int) -> NDArray[np.int64]:
    """How often an epoch shows each id; of very many shards, an even choice is counted."""
    shards = loader.shards
    chosen = np.unique(np.linspace(0, shards.num_shards - 1, _COUNTED_SHARDS).astype(int))
    counts = [shards.store(shard).count_ids(vocab_size) * shards.weights[shard] for shard in chosen.tolist()]
    return np.rint(np.sum(counts, axis=0)).astype(np.int64)


def _loader_options(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    training = config.training
    return _special_ids(tokenizer) | {
        "row_length": config.data.max_length,
        "rows_per_batch": max(1, (training.batch_tokens_start or training.batch_tokens) // config.data.max_length),
        "seed": config.run.seed,
        "window": config.data.packing_window,
        "pin_memory": torch.cuda.is_available(),
        "with_words": config.masking.needs_words,
        "pairing": None if config.pairs.task is None else build_pairing(config.pairs.task),
    }


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _encode(tokenizer: Tokenizer, texts: Sequence[str], options: Mapping[str, Any]) -> TokenStore:
    """What a loader with these options reads."""
    if isinstance(options.get("pairing"), GivenPairs):
        return encode_pairs(tokenizer, texts, options["row_length"])
    if not options.get("with_words", False):
        return TokenStore.from_documents(tokenizer.encode_batch(texts), tokenizer.vocab_size)
    encoded = encode_corpus(texts, tokenizer)
    return TokenStore.from_arrays(encoded.ids, encoded.lengths, encoded.word_starts, tokenizer.vocab_size)
