"""Texts, how they are read and cleaned, and the tokenizer over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from maskwright.errors import InputError
from maskwright.sections.base import Section, read_value

BUILTIN_CORPUS = "builtin:python"
_DEFAULT_COLUMN = "text"


class TokenizerConfig(Section):
    path: str | None = Field(
        default=None, description="A tokenizer.json or its folder; unset: train one on data.train."
    )
    type: Literal["wordpiece", "byte_level_bpe", "unigram", "word_level", "character", "smiles"] = Field(
        default="wordpiece", description="Kind of tokenizer to train; character is for proteins and DNA."
    )
    vocab_size: int = Field(default=30522, ge=6, description="Largest size of the vocabulary.")
    lowercase: bool = Field(default=True, description="Lower-case the text (and, for wordpiece, strip accents).")
    min_frequency: int = Field(default=2, ge=1, description="Words and pairs that are rarer are not learnt.")
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Balance the sources of data.train: each counts by its size to this power; unset: by its size.",
    )


class SourceConfig(Section):
    """Where documents come from, and how to read them."""

    path: str = Field(
        min_length=1,
        description="A file, folder or glob, also by URL; builtin:python; or a dataset as hf:NAME[:CONFIG][@SPLIT].",
    )
    weight: float = Field(
        default=1.0,
        gt=0,
        description="How often an epoch goes through it: 2 is twice, 0.5 a new random half in each epoch.",
    )
    name: str | None = Field(
        default=None, description="What figures call it, such as a language; unset: the file's name."
    )
    start: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the run at which it joins, such as 0.8; the sizes of all sources"
        " decide how much is read of each.",
    )
    column: str | None = Field(default=None, description="Column or key that holds the text; unset: text.")
    second_column: str | None = Field(
        default=None, description="Column or key that holds the second text of a pair; unset: single texts."
    )
    documents: Literal["lines", "paragraphs"] = Field(
        default="lines", description=".txt: one document per line, or documents separated by blank lines."
    )
    sentences: bool = Field(
        default=False,
        description="Read each sentence as a document; text that does not end like a sentence is left out.",
    )
    max_bad_share: float = Field(
        default=0.01, ge=0, le=1, description="Skip broken records up to this share of all; more are an error."
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of a document's text, or of both texts of a pair."""
        first = self.column or _DEFAULT_COLUMN
        return (first,) if self.second_column is None else (first, self.second_column)

    @model_validator(mode="after")
    def _check_columns(self) -> SourceConfig:
        if len(self.columns) > len(set(self.columns)):
            raise ValueError(f"column and second_column are both '{self.second_column}'; name two columns")
        if self.sentences and self.second_column is not None:
            raise ValueError("sentences cuts single texts, second_column makes pairs of them; unset one of the two")
        return self


class DataConfig(Section):
    train: str | list[SourceConfig] = Field(
        default=BUILTIN_CORPUS, description="Texts (a source or several), or a folder made by maskwright prepare."
    )
    validation: str | list[SourceConfig] | None = Field(
        default=None, description="Held-out texts or prepared folder; unset: a share of the training documents."
    )
    validation_share: float = Field(
        default=0.05, gt=0, lt=1, description="Share of texts held out if data.validation is unset."
    )
    sampling_alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Read each source in proportion to weight * size ** alpha: 1 is by size, 0 all alike; unset: each"
        " as often as its weight says.",
    )
    unseen: list[SourceConfig] | None = Field(
        default=None,
        description="Texts that nothing is learnt from, such as another language: evaluated at the end of the run.",
    )
    parts_of_speech: str | None = Field(
        default=None,
        description="Held-out sentences with parts of speech (CoNLL-U, or words and tags in two columns), for a picture"
        " in report.html.",
    )
    max_length: int = Field(
        default=128, ge=3, description="Sequence length: tokens per row; longer documents are split."
    )
    packing_window: int = Field(
        default=10_000, ge=1, description="Number of shuffled samples that are packed into rows together."
    )

    cache_gb: float = Field(
        default=20.0, gt=0, description="Disk for the shards in use, if data.train is a prepared folder in a store."
    )

    @field_validator("unseen", mode="before")
    @classmethod
    def _read_unseen(cls, value: Any) -> Any:
        return value if value is None else build_sources(value)

    @field_validator("train", "validation", mode="before")
    @classmethod
    def _read_sources(cls, value: Any) -> Any:
        """Read mappings and lists as sources; a path stays a path."""
        if isinstance(value, Path):
            return str(value)
        return value if value is None or isinstance(value, str) else build_sources(value)


SourceLike = str | Path | Mapping[str, Any] | SourceConfig


class QualityConfig(Section):
    """Which documents are kept, and how their text is cleaned; every step is off by default."""

    unicode: Literal["nfc", "nfkc"] | None = Field(
        default=None, description="Unicode normalization form for texts; unset: none."
    )
    remove_control: bool = Field(default=False, description="Remove control characters except tabs and line ends.")
    min_chars: int | None = Field(default=None, ge=1, description="Drop documents with fewer characters.")
    max_chars: int | None = Field(default=None, ge=1, description="Drop documents with more characters.")
    min_words: int | None = Field(
        default=None, ge=1, description="Drop documents with fewer words (separated by white space)."
    )
    max_words: int | None = Field(default=None, ge=1, description="Drop documents with more words.")
    min_letter_share: float | None = Field(
        default=None, ge=0, le=1, description="Drop documents with a smaller share of letters, white space not counted."
    )
    max_symbol_share: float | None = Field(
        default=None, ge=0, le=1, description="Drop documents with a larger share of digits and symbols."
    )
    max_repeat_share: float | None = Field(
        default=None, ge=0, le=1, description="Drop documents in which one character has a larger share."
    )
    drop_duplicates: bool = Field(default=False, description="Keep only the first of equal documents.")
    drop_near_duplicates: bool = Field(default=False, description="Keep only the first of nearly equal documents.")
    near_duplicate_similarity: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Jaccard similarity of 5-word shingles from which documents are nearly equal.",
    )

    def without_duplicates(self) -> QualityConfig:
        """The steps that judge a document by itself."""
        return self.model_copy(update={"drop_duplicates": False, "drop_near_duplicates": False})

    @model_validator(mode="after")
    def _check_bounds(self) -> QualityConfig:
        for unit in ("chars", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{unit} ({least}) exceeds max_{unit} ({most}); nothing would be kept")
        return self


class AugmentationConfig(Section):
    """Random word dropout, on text before it is tokenized."""

    probability: float = Field(
        default=0.0, ge=0, le=1, description="Share of texts from which words are dropped; 0: no augmentation."
    )
    word_dropout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the words that are dropped from such a text."
    )


def build_sources(sources: SourceLike | Sequence[SourceLike]) -> list[SourceConfig]:
    """One or several sources, each a path, a mapping of `SourceConfig`'s fields or itself."""
    if not isinstance(sources, str | Path | Mapping | SourceConfig | Iterable):
        raise InputError(f"a source of text is {sources!r}; expected a file, a folder, a dataset or a list of such")
    several = [sources] if isinstance(sources, str | Path | Mapping | SourceConfig) else list(sources)
    if not several:
        raise InputError("no source of text is given; expected at least one file, folder or dataset")
    return [_build_source(source) for source in several]


def name_sources(sources: Sequence[SourceConfig]) -> list[str]:
    """A name for each source, from its path where none is given; equal ones are numbered."""
    names = [source.name or find_name(source.path) for source in sources]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}-{number}" for number, name in enumerate(names, start=1)]


def find_name(path: str) -> str:
    """The name of a file without its suffixes, of a folder, or of a dataset."""
    return path.rstrip("/").rsplit("/", 1)[-1].split(".")[0] or path


def check_can_hold_out(sources: Sequence[SourceConfig]) -> None:
    """Refuse to hold out documents of a source that is also read as sentences, since those would be trained on."""
    cut = {source.path for source in sources if source.sentences}
    whole = {source.path for source in sources if not source.sentences}
    if both := sorted(cut & whole):
        raise InputError(
            f"{both[0]} is read whole and as sentences, so what is held out of one would be learnt from the other;"
            " give held-out texts of their own as data.validation, and prepare with a validation share of 0"
        )


def hold_pairs(sources: Sequence[SourceConfig]) -> bool:
    """Whether the sources hold pairs of texts; pairs and single texts together are refused."""
    pairs = [source.path for source in sources if source.second_column is not None]
    singles = [source.path for source in sources if source.second_column is None]
    if pairs and singles:
        raise InputError(
            f"{pairs[0]} has a second_column and {singles[0]} has none; a run learns from pairs or from single texts:"
            " give all sources one, or none"
        )
    return bool(pairs)


def _build_source(source: SourceLike) -> SourceConfig:
    if isinstance(source, SourceConfig):
        return source
    if isinstance(source, str) and source.startswith("{"):
        source = read_value(source)  # a mapping written on the command line
    values = {"path": str(source)} if isinstance(source, str | Path) else source
    if not isinstance(values, Mapping):
        raise InputError(
            f"a source of text is {values!r:.120}; expected a path, or a mapping such as {{path: corpus.txt}}"
        )
    try:
        return SourceConfig.read(values)
    except InputError as error:
        raise InputError(f"source {values!r:.120}: {error}") from None
