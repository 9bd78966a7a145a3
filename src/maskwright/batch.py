"""The batch type that all rooms share: rows of tokens, with several documents in a row.

B rows, S row length. A token attends only to tokens of its own document, so a padded batch is the special case
of one document per row, followed by padding.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from maskwright.errors import InputError

PADDING_DOCUMENT = 0
IGNORED_LABEL = -100
IS_ASKED = {"is_asked": True}
"""Metadata of label fields, whose padding is the ignored label; padding of other fields is 0."""
_PADDED_KEYS = ("input_ids", "attention_mask", "token_type_ids", "sample_ids", "word_starts", "word_ids")
_FOREIGN_KEYS = {
    "input_mask": "attention_mask",
    "padding_mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "position_ids": "positions",
}


@dataclass(frozen=True)
class PackedBatch:
    """Token rows with their document layout; every field is (B, S), and all but `word_starts` are integers."""

    input_ids: Tensor
    document_ids: Tensor
    """0 for padding, else the number of the document within its row, from 1."""
    positions: Tensor
    """The place of a token within its document."""
    sample_ids: Tensor
    """The corpus-wide number of the sample a token comes from; masks are a function of it."""
    token_type_ids: Tensor | None = None
    word_starts: Tensor | None = None
    """True at the first token of each word; None where words are not known."""
    pair_labels: Tensor | None = field(default=None, metadata=IS_ASKED)
    """At the first token of a pair of segments 0 if the second follows the first, 1 if not; -100 elsewhere."""

    def __post_init__(self) -> None:
        if self.input_ids.ndim != 2:
            raise InputError(f"input_ids has shape {tuple(self.input_ids.shape)}; expected (rows, length)")
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value.shape != self.input_ids.shape:
                raise InputError(
                    f"{one.name} has shape {tuple(value.shape)}, input_ids has {tuple(self.input_ids.shape)};"
                    " both must be (rows, length)"
                )

    @property
    def num_rows(self) -> int:
        return self.input_ids.shape[0]

    @property
    def is_padding(self) -> Tensor:
        return self.document_ids == PADDING_DOCUMENT

    def num_tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int((~self.is_padding).sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self.map_fields(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """A copy in pinned memory, so that copies to a GPU are asynchronous."""
        return self.map_fields(Tensor.pin_memory)

    def rows(self, start: int, stop: int) -> Self:
        return self.map_fields(lambda tensor: tensor[start:stop])

    def cut(self, num_rows: int) -> list[Self]:
        """Parts of at most so many rows, which are worked on one after another."""
        return [self.rows(start, start + num_rows) for start in range(0, self.num_rows, num_rows)]

    @property
    def is_recomputed(self) -> bool:
        """Whether parts of the batch are encoded a second time for their gradients."""
        return False

    def fill_up(self, num_rows: int) -> Self:
        """The batch with at least so many rows; added rows are padding without labels."""
        if num_rows <= self.num_rows:
            return self
        filled = {
            one.name: _extend(value, (num_rows, *value.shape[1:]), _choose_filling(one, value.dtype))
            for one in fields(self)
            if (value := getattr(self, one.name)) is not None
        }
        return replace(self, **filled)

    def with_input_ids(self, input_ids: Tensor) -> Self:
        return replace(self, input_ids=input_ids)

    def map_fields(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The batch with a function applied to each field that is not None."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{name: function(value) for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class DocumentBounds:
    """Where the documents of one row begin: they follow each other without gaps, and nothing else is in the row."""

    starts: Tensor
    """(N + 1,) int32: the first token of each document, and the end of the last."""
    numbers: Tensor
    """(T,) the number of each token's document, from 1."""
    longest: Tensor
    """() int32 on the CPU: tokens of the longest; as a tensor it is no part of what is compiled."""


class SortedBounds(DocumentBounds):
    """Those of documents from the shortest to the longest, for a CPU, which computes those of one length together."""


Documents = Tensor | DocumentBounds | None
"""(B, S) numbers of documents, or the bounds of those of one flat row; None: each row is one document."""


@dataclass(frozen=True)
class FlatBatch(PackedBatch):
    """One row without padding, whose documents are known by their bounds: inference on a GPU needs no mask for it."""

    bounds: DocumentBounds = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.num_rows != 1:
            raise InputError(f"a flat batch has one row, this one has {self.num_rows}")

    def map_fields(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The batch with a function applied to its tensors; the length of the longest document stays on the CPU."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "bounds"}
        mapped: dict[str, Any] = {name: function(value) for name, value in given.items() if value is not None}
        bounds = replace(self.bounds, starts=function(self.bounds.starts), numbers=function(self.bounds.numbers))
        return replace(self, **mapped, bounds=bounds)


def flatten_documents(batch: PackedBatch) -> tuple[FlatBatch, Tensor]:
    """The documents of packed rows in one row, the shortest first, and (T,) where its tokens were, row by row."""
    rows = torch.arange(batch.num_rows, device=batch.input_ids.device)[:, None]
    keys = rows * (batch.input_ids.shape[1] + 1) + batch.document_ids
    real = (~batch.is_padding).flatten().nonzero()[:, 0]
    _, numbers, lengths = torch.unique(keys.flatten()[real], return_inverse=True, return_counts=True)
    ranks = torch.argsort(torch.argsort(lengths, stable=True))
    order = torch.argsort(ranks[numbers], stable=True)
    places = real[order]
    starts = F.pad(lengths.sort().values.cumsum(0), (1, 0)).to(torch.int32)
    document_ids = ranks[numbers][order] + 1
    bounds = SortedBounds(starts, document_ids, lengths.max().to(torch.int32).cpu())

    def take(values: Tensor) -> Tensor:
        return values.flatten()[places][None]

    segments = None if batch.token_type_ids is None else take(batch.token_type_ids)
    flat = FlatBatch(
        take(batch.input_ids),
        document_ids[None],
        take(batch.positions),
        take(batch.sample_ids),
        segments,
        bounds=bounds,
    )
    return flat, places


BatchType = TypeVar("BatchType", bound=PackedBatch)


@dataclass(frozen=True)
class Questions:
    """The model's inputs, its labels and their counts; each objective and task has its own subclass."""

    batch: PackedBatch
    """The inputs of the model."""
    labels: Tensor
    """(B, ...), with the ignored label, or NaN among floats, where there is nothing to predict."""

    @property
    def counts(self) -> Tensor:
        """The number of labels in each part of the loss; here there is one part."""
        return find_asked(self.labels).sum()[None]


def find_asked(labels: Tensor) -> Tensor:
    """Which labels are not ignored: (B, N) for (B, N) or (B, N, C), and (B, N, W) for (B, N, W, C)."""
    is_known = ~labels.isnan() if labels.is_floating_point() else labels != IGNORED_LABEL
    return is_known if is_known.ndim == 2 else is_known[..., 0]


def fill_missing(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of ignored labels."""
    return torch.full(shape, _choose_missing(dtype), dtype=dtype)


def concatenate(batches: Sequence[BatchType]) -> BatchType:
    """One batch of all rows; labels that only some batches have are ignored in the rows of the others."""
    if len(batches) == 1:
        return batches[0]
    lengths = {batch.input_ids.shape[1] for batch in batches}
    if len(lengths) > 1:
        raise InputError(
            f"batches of {min(lengths)} and {max(lengths)} tokens per row cannot be one step; a growing batch"
            " (training.batch_tokens_start) needs rows of one length"
        )
    joined: dict[str, Tensor] = {}
    for one in fields(batches[0]):
        if getattr(batches[0], one.name) is not None:
            values: list[Tensor] = [getattr(batch, one.name) for batch in batches]
            widest = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
            filling = _choose_filling(one, values[0].dtype)
            joined[one.name] = torch.cat([_extend(value, (len(value), *widest), filling) for value in values])
    return replace(batches[0], **joined)


def _extend(values: Tensor, shape: Sequence[int], filling: float) -> Tensor:
    """Pad values to a larger shape."""
    missing = [size - own for size, own in zip(shape, values.shape, strict=True)]
    if not any(missing):
        return values
    return F.pad(values, [side for size in reversed(missing) for side in (0, size)], value=filling)


def _choose_filling(one: Field[Any], dtype: torch.dtype) -> float:
    return _choose_missing(dtype) if one.metadata == IS_ASKED else 0


def _choose_missing(dtype: torch.dtype) -> float:
    return math.nan if dtype.is_floating_point else IGNORED_LABEL


def check_padded(input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> None:
    """Refuse tensors that are not a padded batch: (B, S) each, with integer ids."""
    if not isinstance(input_ids, Tensor):
        raise InputError(
            f"input_ids is a {type(input_ids).__name__}; expected a tensor of token ids, (batch, length), such as"
            " torch.tensor(ids) or what a tokenizer gives with return_tensors='pt'"
        )
    if input_ids.ndim != 2:
        raise InputError(f"input_ids has shape {tuple(input_ids.shape)}; expected (batch, length)")
    if input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise InputError(f"input_ids has the dtype {input_ids.dtype}; token ids are integers, such as torch.long")
    for name, other in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if other is None:
            continue
        if not isinstance(other, Tensor):
            raise InputError(f"{name} is a {type(other).__name__}; expected a tensor, (batch, length)")
        if other.shape != input_ids.shape:
            raise InputError(
                f"{name} has shape {tuple(other.shape)}, input_ids has {tuple(input_ids.shape)};"
                " both must be (batch, length)"
            )


def join_inputs(inputs: Mapping[str, Any], known: Sequence[str], **others: Any) -> dict[str, Any]:
    """The arguments of a model, given in a dictionary, by keyword or both.

    Unknown keys, such as a tokenizer's `special_tokens_mask`, are ignored; a misspelt one is refused.
    """
    if "input_ids" not in inputs:
        raise InputError(f"a batch needs the key 'input_ids', found {sorted(inputs)}")
    for name in inputs.keys() - set(known):
        meant = _FOREIGN_KEYS.get(name) or next(iter(difflib.get_close_matches(name, known, 1, cutoff=0.8)), None)
        if meant in known:
            raise InputError(f"a batch has the key '{name}', which is not read; call it '{meant}'")
    given = {name: value for name, value in others.items() if value is not None}
    if twice := sorted(given.keys() & inputs.keys()):
        raise InputError(f"'{twice[0]}' is in the dictionary and beside it; keep one of them")
    return {**{name: inputs[name] for name in known if name in inputs}, **given}


def from_padded(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    sample_ids: Tensor | None = None,
    word_starts: Tensor | None = None,
) -> PackedBatch:
    """Read a padded batch as packed rows of one document each.

    Without `sample_ids` (one per row) a sample's id is a hash of its tokens, so its masks do not depend on the batch.
    `word_starts` (true at the first token of each word) is for masking by words.
    """
    check_padded(input_ids, attention_mask, token_type_ids)
    is_real = torch.ones_like(input_ids) if attention_mask is None else (attention_mask != 0).to(input_ids.dtype)
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    row_ids = _content_ids(input_ids * is_real, positions) if sample_ids is None else sample_ids.long()
    return PackedBatch(
        input_ids=input_ids,
        document_ids=is_real,
        positions=positions,
        sample_ids=row_ids[:, None].expand_as(input_ids),
        token_type_ids=token_type_ids,
        word_starts=None if word_starts is None else word_starts.bool(),
    )


def as_packed(
    batch: PackedBatch | Mapping[str, Tensor] | Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
) -> PackedBatch:
    """Convert a packed batch, a padded dictionary or plain ids (with attention mask and segments, if given) to a packed
    batch.

    A dictionary may give word boundaries as `word_starts` or as `word_ids` (the same number for tokens of one word).
    """
    if isinstance(batch, PackedBatch):
        return batch
    if isinstance(batch, Tensor):
        return from_padded(batch, attention_mask, token_type_ids)
    if not isinstance(batch, Mapping):
        raise InputError(f"a batch needs the key 'input_ids', found {type(batch).__name__}")
    inputs = join_inputs(batch, _PADDED_KEYS, attention_mask=attention_mask, token_type_ids=token_type_ids)
    word_ids = inputs.pop("word_ids", None)
    if inputs.get("word_starts") is None and word_ids is not None:
        inputs["word_starts"] = find_changes(word_ids)
    return from_padded(**inputs)


def to_padded(batch: PackedBatch) -> tuple[dict[str, Tensor], Tensor]:
    """One document per row, for encoders that do not support packing.

    Returns the padded inputs and, for every token of the packed rows (row-major), its flat index in the padded ones;
    padding tokens get index 0.
    """
    rows = torch.arange(batch.num_rows, device=batch.input_ids.device)[:, None]
    documents_per_row = int(batch.document_ids.max()) + 1 if batch.document_ids.numel() else 1
    keys = (rows * documents_per_row + batch.document_ids).flatten()
    is_real = ~batch.is_padding.flatten()
    unique_keys, document_of_token = torch.unique(keys[is_real], return_inverse=True)
    positions = batch.positions.flatten()[is_real]
    length = int(positions.max()) + 1 if positions.numel() else 1
    num_documents = max(len(unique_keys), 1)
    padded_index = document_of_token * length + positions

    def spread(values: Tensor) -> Tensor:
        out = values.new_zeros(num_documents * length)
        out[padded_index] = values.flatten()[is_real]
        return out.view(num_documents, length)

    inputs = {"input_ids": spread(batch.input_ids), "attention_mask": spread(torch.ones_like(batch.input_ids))}
    if batch.token_type_ids is not None:
        inputs["token_type_ids"] = spread(batch.token_type_ids)
    index = torch.zeros(batch.input_ids.numel(), dtype=torch.long, device=batch.input_ids.device)
    index[is_real] = padded_index
    return inputs, index


def find_changes(values: Tensor) -> Tensor:
    """True where a value differs from the one before it in its row, and at the start of each row."""
    changes = torch.ones_like(values, dtype=torch.bool)
    changes[:, 1:] = values[:, 1:] != values[:, :-1]
    return changes


def _content_ids(input_ids: Tensor, positions: Tensor) -> Tensor:
    """A hash of a row's tokens; padding (id 0 here) adds nothing, so the padded length does not matter."""
    multiplier = 0x9E3779B97F4A7C15 - (1 << 64)
    mixed = (input_ids.long() + 1) * (2 * positions + 1) * multiplier
    mixed = mixed ^ (mixed >> 29)
    return torch.where(input_ids == 0, torch.zeros_like(mixed), mixed * multiplier).sum(dim=1)
