"""How a retriever was trained, and what stands before its texts: from the words of a command, and in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from maskwright.errors import InputError
from maskwright.models.files.model_folder import CONFIG_FILE, read_own_settings
from maskwright.storage import read_record
from maskwright.suggestions import suggest
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import RETRIEVAL_PART, TEXT_ROLES
from maskwright.tasks.similarity.examples import CONTRASTIVE
from maskwright.tasks.similarity.text_similarity import DEFAULT_TEMPERATURE

Kind = Literal["dense", "splade", "colbert"]
DENSE: Kind = "dense"
SPLADE: Kind = "splade"
COLBERT: Kind = "colbert"
KINDS = (DENSE, SPLADE, COLBERT)
MARGIN_MSE, KL = "margin-mse", "kl"
LOSSES = (CONTRASTIVE, MARGIN_MSE, KL)
QUERY_FLOPS, DOCUMENT_FLOPS = 5e-5, 3e-5
"""Weights that sentence-transformers recommends; the paper's are larger for its batches of 124 texts."""
WIDTH, QUERY_LENGTH = 128, 32
_FEWEST = 2
Number = TypeVar("Number", int, float)
_KINDS_OF = {
    "pooling": (DENSE,),
    "dims": (DENSE,),
    "symmetric": (DENSE, SPLADE),
    "false_negative_margin": (DENSE,),
    "query_flops": (SPLADE,),
    "document_flops": (SPLADE,),
    "width": (COLBERT,),
    "query_length": (COLBERT,),
}
"""The kinds that have a setting which not all have."""


@dataclass(frozen=True)
class RetrievalSettings:
    """Settings of all kinds; those that a kind has no use for keep their defaults."""

    kind: Kind = DENSE
    loss: str = CONTRASTIVE
    temperature: float = DEFAULT_TEMPERATURE
    symmetric: bool = False
    false_negative_margin: float | None = None
    dims: tuple[int, ...] = ()
    """Lengths of prefixes that are vectors too."""
    query_prompt: str = ""
    document_prompt: str = ""
    max_length: int | None = None
    """Tokens of a text; dense retrievers keep theirs beside their pooling."""
    query_flops: float | None = None
    document_flops: float | None = None
    """Weights of the regulariser that makes vectors sparse."""
    width: int | None = None
    """Numbers of a token's vector."""
    query_length: int | None = None
    """Tokens that queries are cut to and filled up to; 0: they stay as they are."""
    skipped_tokens: tuple[int, ...] = ()
    """Of documents, which do not count."""

    @property
    def learns_scores(self) -> bool:
        return self.loss != CONTRASTIVE

    @property
    def prompts(self) -> dict[str, str]:
        """By the role of a text, where there is one."""
        given = {role: getattr(self, f"{role}_prompt") for role in TEXT_ROLES}
        return {role: prompt for role, prompt in given.items() if prompt}

    def describe(self) -> dict[str, Any]:
        """For config.json, what is set."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}


RETRIEVAL_FIELDS = tuple(one.name for one in fields(RetrievalSettings))


def read_settings(config: TaskConfig) -> RetrievalSettings:
    """The settings of a command; those of other kinds and losses are refused."""
    kind, loss = config.kind or DENSE, config.loss or CONTRASTIVE
    known = next((one for one in KINDS if one == kind), None)
    if known is None:
        raise InputError(f"there is no kind '{kind}' of retriever{suggest(kind, KINDS)}")
    if loss not in LOSSES:
        raise InputError(f"there is no loss '{loss}' for retrieval{suggest(loss, LOSSES)}")
    _check_options(config, known, loss)
    return RetrievalSettings(
        kind=known,
        loss=loss,
        temperature=config.temperature or (DEFAULT_TEMPERATURE if known == DENSE else 1.0),
        symmetric=config.symmetric,
        false_negative_margin=config.false_negative_margin,
        dims=_read_dims(config.dims),
        query_prompt=config.query_prompt,
        document_prompt=config.document_prompt,
        max_length=None if known == DENSE else config.max_length,
        query_flops=_choose(config.query_flops, QUERY_FLOPS, known == SPLADE),
        document_flops=_choose(config.document_flops, DOCUMENT_FLOPS, known == SPLADE),
        width=_choose(config.width, WIDTH, known == COLBERT),
        query_length=_choose(config.query_length, QUERY_LENGTH, known == COLBERT),
    )


def _choose(given: Number | None, usual: Number, is_used: bool) -> Number | None:
    return None if not is_used else usual if given is None else given


def _check_options(config: TaskConfig, kind: Kind, loss: str) -> None:
    for name, is_set in (("class-weights", config.class_weights), ("label-smoothing", config.label_smoothing)):
        if is_set:
            raise InputError(f"--{name} is for classes; retrieval has none: leave it out")
    for option in ("symmetric", "false_negative_margin"):
        if loss != CONTRASTIVE and getattr(config, option) not in (None, False):
            raise InputError(f"--{option.replace('_', '-')} is for --loss {CONTRASTIVE}, not {loss}; leave it out")
    for option, kinds in _KINDS_OF.items():
        if kind not in kinds and getattr(config, option) not in (None, False):
            name, owners = option.replace("_", "-"), " or ".join(kinds)
            raise InputError(f"--{name} is for --kind {owners}, not {kind}; leave it out")
    if kind != DENSE and config.lora is not None:
        raise InputError(f"--lora is for --kind {DENSE}, as {kind} trains more than an encoder; leave it out")
    if loss == CONTRASTIVE and config.batch_size < _FEWEST:
        raise InputError("--batch-size is 1, which leaves the contrastive loss nothing to compare with; raise it")


def _read_dims(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--dims is '{text}'; expected lengths of vectors such as 256,128,64")
    return tuple(sorted({int(part) for part in parts}, reverse=True))


def load_settings(config: Mapping[str, Any]) -> RetrievalSettings:
    """The settings of a saved model, from its config.json."""
    return read_record(RetrievalSettings, read_own_settings(config, RETRIEVAL_PART), Path(CONFIG_FILE))
