"""Two functions for a quick start: a dataset from texts, and a model with its trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import PreparedShards, find_prepared
from maskwright.errors import InputError, InputWarning
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.inputs import open_shards, open_tokenizer, pack_sources
from maskwright.runs.texts import read_texts as read_documents
from maskwright.runs.trainer import Trainer
from maskwright.sections.data import (
    AugmentationConfig,
    SourceConfig,
    SourceLike,
    build_sources,
    hold_pairs,
)
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.text.corpus import ReadingReport, read_lines
from maskwright.text.files import file_format
from maskwright.text.huggingface import is_loaded
from maskwright.text.in_memory import is_source, is_table, read_texts
from maskwright.text.quality import Document
from maskwright.text.sources import is_plain_text, list_files, names_source
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

PaddedLoader = DataLoader[dict[str, Tensor]]
TextData = SourceLike | Iterable[Any]
"""What `data.train` takes: a path or glob, a mapping with its options, several of them. Or texts: any iterable of
strings or of dictionaries, a data frame of pandas or polars, an Arrow table, a dataset of the `datasets` library."""
Augmentation = AugmentationConfig | Mapping[str, float]


@overload
def create_mlm_dataset(
    text_file: TextData,
    tokenizer: Any,
    batch_size: int = ...,
    max_length: int = ...,
    buffer_size: int = ...,
    *,
    packed: Literal[True] = ...,
    seed: int = ...,
    column: str | None = ...,
    augmentation: Augmentation | None = ...,
    with_words: bool | None = ...,
) -> PackedLoader: ...
@overload
def create_mlm_dataset(
    text_file: TextData,
    tokenizer: Any,
    batch_size: int = ...,
    max_length: int = ...,
    buffer_size: int = ...,
    *,
    packed: Literal[False],
    seed: int = ...,
    column: str | None = ...,
    augmentation: Augmentation | None = ...,
    with_words: bool | None = ...,
) -> PaddedLoader: ...
def create_mlm_dataset(
    text_file: TextData,
    tokenizer: Any,
    batch_size: int = 32,
    max_length: int = 128,
    buffer_size: int = 10_000,
    *,
    packed: bool = True,
    seed: int = 0,
    column: str | None = None,
    augmentation: Augmentation | None = None,
    with_words: bool | None = None,
) -> PackedLoader | PaddedLoader:
    """Batches of what `data.train` reads, or of texts in memory: strings, records, a data frame or a dataset.

    A path is a file (.txt, .jsonl, .csv, .tsv, .parquet, plain or compressed), a folder, a glob, `hf:NAME` or a folder
    made by `maskwright prepare`; a mapping gives a path options, as in docs/data.md. A list of strings is a list of
    texts; paths in a list are `Path` objects or mappings with a `path`, other mappings are records. `column` holds the
    text of records; unset it is `text`, and in memory another usual name, which is said.

    Texts are tokenized once, shuffled anew each epoch and built ahead. Packed (for our encoders and Trainer), a batch
    is `batch_size` rows of `max_length` tokens, several sentences to a row, `buffer_size` shuffled sentences packed
    together. With `packed=False` it is a dictionary of `input_ids`, `attention_mask` and `token_type_ids` with one
    sentence per row, for loops and encoders of your own. `augmentation` drops words, others in every epoch:
    {"probability": 0.3, "word_dropout": 0.1}. Batches tell where words begin (`word_starts`), for models that mask
    whole words or spans, if they are packed or `with_words` is set.
    """
    tokenizer = open_tokenizer(str(tokenizer)) if isinstance(tokenizer, str | Path) else as_tokenizer(tokenizer)
    options: dict[str, Any] = {
        "row_length": max_length,
        "rows_per_batch": batch_size,
        "seed": seed,
        "window": buffer_size if packed else 1,  # a window of one sample is a row of its own
        "pin_memory": packed and torch.cuda.is_available(),
        "with_words": packed if with_words is None else with_words,
    }
    settings = _build_augmentation(augmentation)
    prepared = find_prepared(text_file) if isinstance(text_file, str | Path) else None
    if prepared is not None:
        _check_no_column(column, str(text_file))
        if settings.probability:
            raise InputError(f"augmentation works on text, {text_file} holds token ids; give the texts")
        if with_words is None:  # those of older folders are not known
            options["with_words"] = packed and PreparedShards(prepared, "train").has_words
        loader = open_shards(prepared, tokenizer, **options)
    else:
        texts = _read_data(text_file, column)
        loader = pack_sources(texts.sources, tokenizer, _warn, weights=texts.weights, augmentation=settings, **options)
    return loader if packed else _PaddedBatches(loader, tokenizer)


def create_mlm_training_model(
    encoder: nn.Module,
    vocab_size: int | None = None,
    mask_token_id: int | None = None,
    special_token_ids: Sequence[int] = (),
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    seed: int = 0,
    *,
    tokenizer: Any = None,
    **model_arguments: Any,
) -> Trainer:
    """A `MaskedLanguageModel` with AdamW and a warm-up and cosine schedule: `.fit(...)` trains it, `.model` is it.

    The sizes and ids before it may come from a `tokenizer`.
    """
    model = MaskedLanguageModel(
        encoder,
        vocab_size,
        mask_token_id=mask_token_id,
        special_token_ids=special_token_ids,
        tokenizer=tokenizer,
        **model_arguments,
    )
    optimizer = OptimizerConfig(type="adamw", learning_rate=learning_rate, weight_decay=weight_decay)
    return Trainer(model, optimizer, ScheduleConfig(), TrainingConfig(), seed=seed)


class _Texts(NamedTuple):
    sources: list[list[Document]]
    weights: list[float]


def _read_data(data: Any, column: str | None) -> _Texts:
    if isinstance(data, str | Path) and is_plain_text(data):
        _check_no_column(column, str(data))
        report = ReadingReport()
        texts: list[Document] = [*read_lines(data, report)]
        _warn_of(report, data)
        return _Texts([texts], [1.0])
    if isinstance(data, str | Path | Mapping | SourceConfig) and not is_loaded(data):
        return _read_sources(build_sources(data), column)
    if not isinstance(data, Iterable) and not is_table(data):
        raise InputError(
            f"{data!r:.40} ({type(data).__name__}) holds no texts; give a path, a list of strings or of dictionaries, a"
            " data frame or a dataset of the datasets library"
        )
    if is_table(data):
        return _Texts([_read_records(data, column)], [1.0])
    items: list[Any] = list(data)
    sources = [item for item in items if is_source(item)]
    if sources and len(sources) == len(items):
        return _read_sources(build_sources(sources), column)
    if items and isinstance(items[0], Mapping):
        return _Texts([_read_records(items, column)], [1.0])
    _check_no_column(column, "a list of strings")
    return _Texts([_check_texts([*read_texts(items)] if items else [])], [1.0])


def _read_sources(sources: Sequence[SourceConfig], column: str | None) -> _Texts:
    if column is not None:
        files = [file for source in sources for file in list_files(source)]
        if files and all(file_format(file) == "text" for file in files):
            _check_no_column(column, str(files[0]))
        sources = [one if one.column else one.model_copy(update={"column": column}) for one in sources]
    hold_pairs(sources)
    return _Texts([read_documents(source, _warn) for source in sources], [source.weight for source in sources])


def _read_records(data: Any, column: str | None) -> list[Document]:
    report = ReadingReport()
    texts: list[Document] = [*read_texts(data, column, report, _warn)]
    _warn_of(report, type(data).__name__)
    if not texts:
        raise InputError(f"the {type(data).__name__} is empty; expected at least one text")
    return texts


def _check_no_column(column: str | None, name: str) -> None:
    if column is not None:
        raise InputError(f"column is '{column}', and {name} has no columns; leave it out")


def _check_texts(texts: list[str]) -> list[Document]:
    """Texts that are not blank; file names, which would be trained on as text, are refused."""
    if texts and names_source(texts[0]) and all(map(names_source, texts)):
        raise InputError(
            f"a list of strings is a list of texts, and '{texts[0]}' names something to read; give Path('{texts[0]}')"
            f" or {{'path': '{texts[0]}'}} in the list"
        )
    kept: list[Document] = [text for text in texts if text and not text.isspace()]
    if not kept:
        raise InputError(f"none of the {len(texts)} texts holds anything but blanks; expected at least one text")
    return kept


def _build_augmentation(given: Augmentation | None) -> AugmentationConfig:
    return given if isinstance(given, AugmentationConfig) else AugmentationConfig.read(dict(given or {}))


def _warn_of(report: ReadingReport, name: str | Path) -> None:
    for warning in report.warnings(name):
        _warn(warning)


def _warn(message: str) -> None:
    warnings.warn(message, InputWarning, stacklevel=5)


class _PaddedRows(Dataset[dict[str, Tensor]]):
    """The rows of an epoch one by one, from a loader with one sample per row."""

    def __init__(self, loader: PackedLoader) -> None:
        self._loader = loader
        self._epoch = -1
        self._begin(0)

    def begin_epoch(self) -> None:
        self._epoch += 1
        if self._epoch:
            self._begin(self._epoch)

    def _begin(self, epoch: int) -> None:
        self._shown = self._loader.for_epoch(epoch)
        self._rows = self._shown.locate_rows(epoch)

    def __len__(self) -> int:
        return self._rows.shape[1]

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        row = self._shown.build_rows(self._rows[:, place : place + 1], max(self._epoch, 0))
        segments = torch.zeros_like(row.input_ids) if row.token_type_ids is None else row.token_type_ids
        given = {
            "input_ids": row.input_ids[0],
            "attention_mask": (~row.is_padding[0]).long(),
            "token_type_ids": segments[0],
        }
        return given if row.word_starts is None else given | {"word_starts": row.word_starts[0]}


class _PaddedBatches(DataLoader[dict[str, Tensor]]):
    """Each iteration is the next epoch, in the order of the loader behind it."""

    def __init__(self, loader: PackedLoader, tokenizer: Tokenizer) -> None:
        self._rows = _PaddedRows(loader)
        self.tokenizer = tokenizer
        super().__init__(self._rows, batch_size=loader.rows_per_batch)

    def __iter__(self) -> Any:
        self._rows.begin_epoch()
        return super().__iter__()
