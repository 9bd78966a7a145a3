"""The inputs of a run from its configuration: a tokenizer and loaders of documents or pairs of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.config import Config
from maskwright.data.given_pairs import GivenPairs, PairStore, Segments, find_room
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import build_pairing
from maskwright.data.shards import (
    TOKENIZER_FOLDER,
    PreparedShards,
    Shards,
    StoresInMemory,
    find_prepared,
    read_manifest,
)
from maskwright.data.store import StoreBuilder, TokenStore
from maskwright.errors import InputError
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.texts import AugmentedLoader, Documents, Say, Spill, build_spill, read_documents
from maskwright.sections.data import AugmentationConfig, QualityConfig, build_sources
from maskwright.storage import naming
from maskwright.text.quality import Document, TextPair, list_texts
from maskwright.text.tokenizer.counted import balance_counts, check_countable, count_words, train_on_counts
from maskwright.text.tokenizer.encode import encode_ids, encode_texts
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts, load_tokenizer
from maskwright.text.tokenizer.train import build_plan, train_tokenizer
from maskwright.text.tokenizer.words import build_boundaries

_COUNTED_SHARDS = 32


@dataclass(frozen=True)
class TrainingData:
    """The training and evaluation data of a run."""

    tokenizer: Tokenizer
    train: PackedLoader
    validation: PackedLoader
    fingerprint: str
    """A hash of the texts and the tokenizer, so that a run is not resumed on others."""


def load_data(config: Config, kept_tokenizer: Path | None, warn: Say) -> TrainingData:
    """Open a prepared folder, or read and tokenize texts here; a resumed run keeps its own tokenizer."""
    prepared = find_prepared(config.data.train, config.data.cache_gb) if isinstance(config.data.train, str) else None
    if prepared is not None:
        return _open_prepared(config, prepared)
    return _read_texts(config, kept_tokenizer, warn)


def _read_texts(config: Config, kept_tokenizer: Path | None, warn: Say) -> TrainingData:
    spill = build_spill(config, warn)
    documents = read_documents(config, warn, spill)
    tokenizer = get_tokenizer(config, documents.train, kept_tokenizer)
    weights = [source.weight for source in build_sources(config.data.train)]
    options = _loader_options(config, tokenizer) | ({"pairing": GivenPairs()} if documents.are_pairs else {})
    train = _pack(documents.train, weights, config.augmentation, spill, **options, shuffle=True)
    weights = [1.0] * len(documents.held_out)
    validation = _pack(documents.held_out, weights, spill=spill, **options, shuffle=False)
    warn_of_losses([train.shards, validation.shards], config.data.max_length, warn)
    return TrainingData(tokenizer, train, validation, _hash_texts(documents, tokenizer))


def _pack(
    texts: Sequence[Iterable[str]],
    weights: Sequence[float] = (1.0,),
    augmentation: AugmentationConfig | None = None,
    spill: Spill | None = None,
    **options: Any,
) -> PackedLoader:
    """A loader over the texts of each source; of pairs, the first and the second text by turns."""
    tokenizer: Tokenizer = options["tokenizer"]

    def encode(texts: Sequence[Iterable[str]]) -> Shards:
        if spill is None or not spill.is_active:
            return StoresInMemory([_encode(tokenizer, one, options) for one in texts], weights)
        with naming(spill.folder):
            return StoresInMemory([_encode(tokenizer, one, options, spill.open_file()) for one in texts], weights)

    if augmentation is not None and augmentation.probability:
        loader: PackedLoader = AugmentedLoader(texts, encode, augmentation, **options)
    else:
        loader = PackedLoader(encode(texts), **options)
    _check_maskable(loader.shards, tokenizer)
    return loader


def _check_maskable(shards: Shards, tokenizer: Tokenizer) -> None:
    """Refuse text with special or unknown tokens only, which are never masked."""
    stores = (shards.store(shard) for shard in range(shards.num_shards))
    counts = np.sum([store.count_ids(tokenizer.vocab_size) for store in stores], axis=0)
    is_special = np.isin(np.arange(len(counts)), tokenizer.all_special_ids)
    if counts[~is_special].any():
        return
    commonest = int(counts.argmax())
    raise InputError(
        f"none of the {counts.sum():,} tokens of the text can be masked: all are special ones,"
        f" {counts[commonest]:,} of them '{tokenizer.token(commonest)}'; give a tokenizer that knows this text, or"
        " train one on it"
    )


def _open_prepared(config: Config, folder: Path) -> TrainingData:
    if config.augmentation.probability:
        raise InputError(f"augmentation works on text, {folder} holds token ids; give the texts as data.train")
    tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
    if config.tokenizer.path is not None:
        _check_prepared_with(folder, open_tokenizer(config.tokenizer.path), config.tokenizer.path)
    if config.quality != QualityConfig():
        raise InputError(f"quality settings work on text, {folder} is prepared already; prepare it with them")
    validation = _validation_folder(config, folder)
    manifests = [read_manifest(place) for place in (folder, validation)]
    if manifests[0]["tokenizer_sha256"] != manifests[1]["tokenizer_sha256"]:
        raise InputError(f"{folder} and {config.data.validation} were prepared with different tokenizers")
    held_out = PreparedShards(validation, "validation")
    if not held_out.num_tokens:
        raise InputError(f"{held_out.folder} holds no validation documents; prepare it with a validation share")
    learnt = _open_training_shards(folder)
    options = _loader_options(config, tokenizer)
    train = PackedLoader(learnt, **options, shuffle=True)
    fingerprint = "-".join(manifest["key"] for manifest in manifests)
    return TrainingData(tokenizer, train, PackedLoader(held_out, **options, shuffle=False), fingerprint)


def _check_prepared_with(folder: Path, tokenizer: Tokenizer, name: str) -> None:
    own = folder / TOKENIZER_FOLDER
    if load_tokenizer(own).backend.to_str() != tokenizer.backend.to_str():
        raise InputError(f"{folder} was prepared with another tokenizer than {name}; give {own}, or prepare it again")


def _open_training_shards(folder: Path) -> PreparedShards:
    shards = PreparedShards(folder, "train")
    if not shards.num_tokens:
        raise InputError(f"{folder} holds no training documents, all are held out; give it as data.validation")
    return shards


def _hash_texts(documents: Documents, tokenizer: Tokenizer) -> str:
    digest = hashlib.blake2b(tokenizer.backend.to_str().encode(), digest_size=16)
    for texts in (*documents.train, *documents.held_out):
        for text in texts:
            digest.update(text.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def _validation_folder(config: Config, folder: Path) -> Path:
    if config.data.validation is None:
        return folder
    given = config.data.validation
    prepared = find_prepared(given, config.data.cache_gb) if isinstance(given, str) else None
    if prepared is None:
        raise InputError("data.train is prepared data; data.validation must be prepared data too, or unset")
    return prepared


def get_tokenizer(config: Config, sources: Sequence[Iterable[str]], kept: Path | None) -> Tokenizer:
    """The tokenizer `kept` by a resumed run, else the configured one, that of the initial model or the teacher, or one
    that is newly trained on the documents of the sources.
    """
    if kept is not None and (kept / "tokenizer.json").is_file():
        return load_tokenizer(kept)
    if config.tokenizer.path is not None:
        return open_tokenizer(config.tokenizer.path)
    initial = config.model.from_ or config.distillation.teacher
    if initial is not None:
        return open_tokenizer(initial)
    settings = config.tokenizer
    wanted = (settings.vocab_size, settings.lowercase, settings.min_frequency)
    if settings.alpha is None:
        return train_tokenizer(lambda: chain.from_iterable(sources), settings.type, *wanted)
    check_countable(settings.type)
    counts = [count_words(texts, settings.type, settings.lowercase) for texts in sources]
    return train_on_counts(balance_counts(counts, settings.alpha), settings.type, build_plan(*wanted, ()))


def open_tokenizer(name: str) -> Tokenizer:
    """A tokenizer's file or folder, or that of a run, a model or a hub id."""
    names_a_file = Path(name).is_file() or Path(name).suffix in (".json", ".txt")
    return load_tokenizer(name if names_a_file else resolve_folder(name))


def pack_documents(
    documents: Sequence[Document], tokenizer: Tokenizer, warn: Say = lambda text: None, **options: Any
) -> PackedLoader:
    """A loader over texts, or over pairs of texts; `options` are those of `PackedLoader`."""
    return pack_sources([documents], tokenizer, warn, **options)


def pack_sources(
    sources: Sequence[Sequence[Document]],
    tokenizer: Tokenizer,
    warn: Say = lambda text: None,
    *,
    weights: Sequence[float] = (1.0,),
    augmentation: AugmentationConfig | None = None,
    **options: Any,
) -> PackedLoader:
    """A loader over the documents of several sources, each with its weight."""
    are_pairs = [isinstance(document, TextPair) for documents in sources for document in documents]
    if any(are_pairs):
        if not all(are_pairs):
            raise InputError("some sources are pairs (second_column), others single texts; give one kind at a time")
        options["pairing"] = GivenPairs()
    texts = [list_texts(documents) for documents in sources]
    loader = _pack(texts, weights, augmentation, **(_tokenizer_options(tokenizer) | options))
    warn_of_losses([loader.shards], loader.row_length, warn)
    return loader


def open_shards(folder: str | Path, tokenizer: Tokenizer, **options: Any) -> PackedLoader:
    """A loader over the training documents of a prepared folder; `options` are those of `PackedLoader`."""
    folder = Path(folder)
    _check_prepared_with(folder, tokenizer, "the one that is given")
    return PackedLoader(_open_training_shards(folder), **(_tokenizer_options(tokenizer) | options))


def count_tokens(loader: PackedLoader, vocab_size: int) -> NDArray[np.int64]:
    """How often each id occurs in an epoch; of very many shards, an even choice is counted."""
    shards = loader.shards
    chosen = np.unique(np.linspace(0, shards.num_shards - 1, _COUNTED_SHARDS).astype(int))
    counts = [shards.store(shard).count_ids(vocab_size) * shards.weights[shard] for shard in chosen.tolist()]
    return np.rint(np.sum(counts, axis=0)).astype(np.int64)


def _loader_options(config: Config, tokenizer: Tokenizer) -> dict[str, Any]:
    training = config.training
    return _tokenizer_options(tokenizer) | {
        "row_length": config.data.max_length,
        "rows_per_batch": max(1, (training.batch_tokens_start or training.batch_tokens) // config.data.max_length),
        "seed": config.run.seed,
        "window": config.data.packing_window,
        "pin_memory": torch.cuda.is_available(),
        "with_words": config.masking.needs_words,
        "pairing": None if config.pairs.task is None else build_pairing(config.pairs.task),
    }


def _tokenizer_options(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tokenizer": tokenizer,
        "cls_token_id": tokenizer.cls_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _encode(
    tokenizer: Tokenizer, texts: Iterable[str], options: Mapping[str, Any], file: IO[bytes] | None = None
) -> TokenStore:
    """What a loader with these options reads; with a `file`, the ids are there."""
    if isinstance(options.get("pairing"), GivenPairs):
        return encode_pairs(tokenizer, texts, options["row_length"], file)
    boundaries = build_boundaries(tokenizer) if options.get("with_words", False) else None
    builder = StoreBuilder(tokenizer.vocab_size, boundaries is not None, file)
    for group in group_texts(texts, CHUNK_CHARS):
        if boundaries is None:
            builder.add(*encode_ids(group, tokenizer))
        else:
            encoded = encode_texts(group, tokenizer, boundaries)
            builder.add(encoded.ids, encoded.lengths, encoded.word_starts)
    return builder.build()


def encode_pairs(
    tokenizer: Tokenizer, texts: Iterable[str], row_length: int, file: IO[bytes] | None = None
) -> PairStore:
    """The pairs whose first and second texts come by turns; words are known. With a `file`, the ids are there."""
    boundaries = build_boundaries(tokenizer)
    builder = StoreBuilder(tokenizer.vocab_size, with_words=True, file=file)
    first_lengths = [np.empty(0, np.int64)]
    num_cut = num_empty = 0
    for group in group_texts(texts, CHUNK_CHARS, multiple=2):
        encoded = [encode_texts(side, tokenizer, boundaries) for side in (group[::2], group[1::2])]
        firsts, seconds = (Segments(side.ids, side.lengths, side.word_starts) for side in encoded)
        part = PairStore.from_segments(firsts, seconds, tokenizer.vocab_size, find_room(row_length))
        assert part.word_bits is not None
        words = np.unpackbits(part.word_bits, count=part.num_tokens).astype(bool)
        builder.add(part.ids, np.diff(part.offsets), words)
        first_lengths.append(part.first_lengths)
        num_cut, num_empty = num_cut + part.num_cut, num_empty + part.num_empty
    store = builder.build()
    return PairStore(
        store.ids,
        store.offsets,
        store.word_bits,
        first_lengths=np.concatenate(first_lengths),
        num_cut=num_cut,
        num_empty=num_empty,
    )


def warn_of_losses(corpora: Sequence[Shards], row_length: int, warn: Say) -> None:
    """Warn of truncated and dropped pairs."""
    stores = [shards.store(shard) for shards in corpora for shard in range(shards.num_shards)]
    pairs = [store for store in stores if isinstance(store, PairStore)]
    num_cut, num_empty = sum(store.num_cut for store in pairs), sum(store.num_empty for store in pairs)
    num_pairs = sum(store.num_documents for store in pairs) + num_empty
    if num_cut:
        warn(
            f"{num_cut:,} of {num_pairs:,} pairs have more tokens than a row of {row_length} has room for; the longer"
            " text of each lost its end. Raise data.max_length if the ends matter"
        )
    if num_empty:
        warn(
            f"{num_empty:,} of {num_pairs:,} pairs were left out, as the tokenizer finds no token in one of their"
            " texts. Check the tokenizer if they matter"
        )
