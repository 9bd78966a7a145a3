"""Attention among documents that follow each other in one row: no mask and no padding.

On a CPU documents of one length that are neighbours are computed together. In inference on a GPU FlashAttention, or a
kernel of ours for short documents, takes all of a flat row with their bounds, and nothing waits for the device. H
attention heads, T tokens of the row, K head size, N documents of a group, L their length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import DocumentBounds
from maskwright.models.kernels.availability import runs_kernels

_FLAT_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_MULTIPLE = 8
_LARGEST_HEAD = 256
_SHORT_DOCUMENT = 64
"""Where documents have so many tokens or fewer on average, our own kernel is faster than FlashAttention."""


Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Of queries, keys, values (N, H, L, K) and a mask."""


@dataclass(frozen=True)
class DocumentGroup:
    """Documents of one length, one after another."""

    start: int
    count: int
    length: int
    attention_mask: Tensor | None = None
    """(N, H, L, L) or what can be expanded to it: true where tokens may see each other, or scores to add."""

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def num_tokens(self) -> int:
        return self.count * self.length

    def shape(self, own: Tensor) -> Tensor:
        """(N, H, L, K) of the features (H, N * L, K) of its tokens."""
        return own.view(own.shape[0], self.count, self.length, own.shape[2]).transpose(0, 1)


@dataclass(frozen=True)
class DocumentGroups:
    """The documents of one row in order; takes the place of an attention mask."""

    groups: tuple[DocumentGroup, ...]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, attend: Attend) -> Tensor:
        """(1, H, T, K) of the same"""
        sizes = [group.num_tokens for group in self.groups]
        queries, keys, values = (one[0].split_with_sizes(sizes, dim=1) for one in (query, key, value))
        parts = [
            attend(group.shape(own), group.shape(seen), group.shape(taken), _match(group.attention_mask, query))
            .transpose(1, 2)
            .flatten(0, 1)
            for group, own, seen, taken in zip(self.groups, queries, keys, values, strict=True)
        ]
        tokens = parts[0] if len(parts) == 1 else torch.cat(parts)
        return tokens[None].transpose(1, 2)

    def narrow(self, build: Callable[[DocumentGroup], Tensor | None]) -> DocumentGroups:
        """The same documents with other masks."""
        return DocumentGroups(tuple(replace(group, attention_mask=build(group)) for group in self.groups))


def _match(attention_mask: Tensor | None, query: Tensor) -> Tensor | None:
    is_added = attention_mask is not None and attention_mask.is_floating_point()
    return attention_mask.to(query.dtype) if attention_mask is not None and is_added else attention_mask


def takes_documents_alone(hidden: Tensor) -> bool:
    """Whether hidden states (B, S, D) are one row of inference on a CPU, whose documents are computed one by one.

    An export must not look at the number of rows, or its graph would have that number.
    """
    is_inference = torch.is_inference_mode_enabled() and not torch.compiler.is_compiling()
    return is_inference and hidden.device.type == "cpu" and hidden.shape[0] == 1


def group_documents(hidden: Tensor, document_ids: Tensor | None, is_causal: Tensor | None) -> DocumentGroups | None:
    """The documents of one row of hidden states (1, T, D) of inference on a CPU; None of any other.

    `is_causal` (1, T) is true for tokens that may see only what comes before them, and themselves.
    """
    is_meant = takes_documents_alone(hidden)
    if document_ids is None or not is_meant:
        return None
    numbers, lengths = torch.unique_consecutive(document_ids[0].long(), return_counts=True)
    if len(numbers.unique()) < len(numbers):  # parts of a document that stand apart see each other
        return None
    found = build_groups(lengths)
    return found if is_causal is None else found.narrow(lambda group: _look_back(group, is_causal))


def build_groups(lengths: Tensor) -> DocumentGroups:
    """The documents of one row, which have these lengths (N,) in this order."""
    groups: list[DocumentGroup] = []
    start = 0
    for length, count in zip(
        *map(torch.Tensor.tolist, torch.unique_consecutive(lengths, return_counts=True)), strict=True
    ):
        groups.append(DocumentGroup(start, count, length))
        start = groups[-1].stop
    return DocumentGroups(tuple(groups))


def _look_back(group: DocumentGroup, is_causal: Tensor) -> Tensor:
    """(N, 1, L, L)"""
    own = is_causal[0, group.start : group.stop].view(group.count, 1, group.length, 1)
    places = torch.arange(group.length)
    return ~own | (places <= places[:, None])


def limit_groups(documents: DocumentGroups, half_window: int) -> DocumentGroups:
    """Tokens see those at most `half_window` places away; documents no longer than that stay as they are."""

    def limit(group: DocumentGroup) -> Tensor | None:
        if group.length <= half_window + 1:
            return group.attention_mask
        places = torch.arange(group.length)
        is_near = ((places[:, None] - places).abs() <= half_window)[None, None]
        return is_near if group.attention_mask is None else group.attention_mask & is_near

    return documents.narrow(limit)


@dataclass(frozen=True)
class FlatAttention:
    """Takes the place of an attention mask: tokens see their own document."""

    bounds: DocumentBounds
    half_window: int | None = None
    """Tokens see those at most so many places away; None: all."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(1, H, T, K) of the same"""
        window = -1 if self.half_window is None else self.half_window
        heads = (_flatten(query), _flatten(key), _flatten(value))
        attended = attend_documents(*heads, self.bounds.numbers, self.bounds.starts, self.bounds.longest, window)
        return attended.transpose(0, 1)[None]


def _flatten(features: Tensor) -> Tensor:
    """(T, H, K) of (1, H, T, K)"""
    return features[0].transpose(0, 1)


def attend_documents(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    """(T, H, K) of the same"""
    if torch.compiler.is_compiling():
        attended: Tensor = _attend_opaquely(query, key, value, numbers, starts, longest, half_window)
        return attended
    return _attend(query, key, value, numbers, starts, longest, half_window)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    window = None if half_window < 0 else half_window
    if are_short(DocumentBounds(starts, numbers, longest), window):
        from maskwright.models.kernels.short_documents import attend_short_documents

        return attend_short_documents(query, key, value, numbers, starts)
    most = int(longest)
    return attend_with_flash(query, key, value, starts, most, window if _has_window(most, window) else None)


def are_short(bounds: DocumentBounds, half_window: int | None) -> bool:
    """Whether attention among these documents is for our kernel: short ones on average, on a GPU that runs it, none of
    which is longer than a token sees."""
    num_tokens, num_documents = len(bounds.numbers), len(bounds.starts) - 1
    if num_tokens > _SHORT_DOCUMENT * num_documents or _has_window(int(bounds.longest), half_window):
        return False
    return runs_kernels(bounds.starts.device)


def _has_window(longest: int, half_window: int | None) -> bool:
    return half_window is not None and half_window < longest - 1


def attend_with_flash(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, most: int, half_window: int | None
) -> Tensor:
    window: dict[str, Any] = {}
    if half_window is not None:
        window = {"window_size_left": half_window, "window_size_right": half_window}
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, most, most, 0.0, False, False, **window
    )[0]
    return output


@torch.library.custom_op("maskwright::attend_documents", mutates_args=())
def _attend_opaquely(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    """The same for compiled layers, which are compiled once whatever the lengths are.

    The kernel's result lies in memory as the query does; compiled code counts on what the stand-in below says.
    """
    return _attend(query, key, value, numbers, starts, longest, half_window).contiguous()


@_attend_opaquely.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    return query.new_empty(query.shape)


def supports_flat_rows(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Whether this device and this torch have the kernel for heads of this size; it is tried once."""
    is_plausible = dtype in _FLAT_DTYPES and head_size % _HEAD_MULTIPLE == 0 and head_size <= _LARGEST_HEAD
    return device.type == "cuda" and is_plausible and _has_kernel(device, dtype, head_size)


@cache
def _has_kernel(device: torch.device, dtype: torch.dtype, head_size: int) -> bool:
    """Two documents of one token and of two: the first is its own value, and so has to be the result."""
    features = torch.randn(3, 1, head_size, device=device).to(dtype)
    starts = torch.tensor([0, 1, 3], dtype=torch.int32, device=device)
    try:
        attended = attend_with_flash(features, features, features, starts, 2, None)
    except (RuntimeError, TypeError, AttributeError):  # an older GPU, or a torch built without the kernel
        return False
    return attended.shape == features.shape and torch.equal(attended[0], features[0])
