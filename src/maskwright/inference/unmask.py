"""Write by filling masks step by step: iterative unmasking, with any model that predicts masked tokens.

N places, V vocabulary. A step predicts all masked places at once and keeps some of the answers; the others are masked
still, and predicted anew by the next step, which sees what was kept (Nie et al. 2025, LLaDA).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from maskwright.batch import from_padded
from maskwright.errors import InputError, check_count
from maskwright.models.any_encoder import encode, find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.suggestions import suggest
from maskwright.text.tokenizer.tokenizer import Tokenizer

STRATEGIES = ("confidence", "random", "blockwise")
DEFAULT_BLOCK_SIZE = 8
_GAP = re.compile(r"(?:\[MASK:(\d+)(?:-(\d+))?\]|<mask:(\d+)(?:-(\d+))?>)")
_MOST_CHOICES = 64
_COPIES_AT_ONCE = 32


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen by its logits."""

    temperature: float = 0.0
    """0 takes the most probable token."""
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}; it must be at least 0")
        if self.top_k is not None:
            check_count("top_k", self.top_k, 1)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must lie in (0, 1]")

    def choose(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """(N,) tokens for logits (N, V): the best, or drawn among the `top_k` and those that sum up to `top_p`."""
        if self.temperature == 0:
            return logits.argmax(-1)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[..., -1:], -math.inf)
        probabilities = (logits / self.temperature).softmax(-1)
        if self.top_p is not None:
            ordered, order = probabilities.sort(-1, descending=True)
            ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= self.top_p, 0.0)
            probabilities = torch.zeros_like(probabilities).scatter_(-1, order, ordered)
        return torch.multinomial(probabilities, 1, generator=generator)[..., 0]


@dataclass(frozen=True)
class Unmasking:
    """In how many steps masks are filled, and which first."""

    steps: int | None = None
    """Passes through the model; None: one for each masked token."""
    strategy: str = "confidence"
    """The most probable answers first, random places first, or block after block from left to right."""
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise InputError(f"no strategy '{self.strategy}'{suggest(self.strategy, STRATEGIES)}")
        if self.steps is not None:
            check_count("steps", self.steps, 1)
        if self.block_size is not None:
            check_count("block_size", self.block_size, 1)
            if self.strategy != "blockwise":
                raise InputError(
                    f"block_size is for the strategy blockwise, not {self.strategy}; set the strategy, or leave it out"
                )

    def plan(self, places: Tensor) -> Iterator[tuple[Tensor, list[int]]]:
        """Blocks of places, with how many of them each step fills."""
        size = (self.block_size or DEFAULT_BLOCK_SIZE) if self.strategy == "blockwise" else len(places)
        for block in places.split(size):
            asked = len(block) if self.steps is None else round(self.steps * len(block) / len(places))
            steps = min(max(1, asked), len(block))
            yield block, [len(block) * (step + 1) // steps - len(block) * step // steps for step in range(steps)]


def has_gaps(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has masks, one by one or as gaps of a length."""
    return _GAP.search(text) is not None or tokenizer.mask_token in tokenizer.unify_masks(text)


def list_fillings(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The ids of a text with masks in its gaps: `[MASK]` is one, `[MASK:5]` five, `[MASK:2-6]` any of these numbers.

    One for each choice of lengths.
    """
    ranges = [_read_gap(gap) for gap in _GAP.finditer(text)]
    if math.prod(map(len, ranges)) > _MOST_CHOICES:
        raise InputError(
            f"the gaps can have {math.prod(map(len, ranges)):,} choices of lengths, at most {_MOST_CHOICES} are tried;"
            " give smaller ranges"
        )
    return [tokenizer.encode(_write_masks(tokenizer, text, lengths)) for lengths in itertools.product(*ranges)]


def _write_masks(tokenizer: Tokenizer, text: str, lengths: Sequence[int]) -> str:
    left = iter(lengths)
    return _GAP.sub(lambda _: tokenizer.mask_token * next(left), tokenizer.unify_masks(text))


def _read_gap(gap: re.Match[str]) -> range:
    low, high = (int(number) if number else None for number in (gap[1] or gap[3], gap[2] or gap[4]))
    assert low is not None
    if not 1 <= low <= (low if high is None else high):
        raise InputError(f"a gap is written {gap[0]}; give its tokens, as [MASK:5], or a range of them, as [MASK:2-6]")
    return range(low, (low if high is None else high) + 1)


@torch.no_grad()
def unmask(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    fillings: Sequence[list[int]],
    unmasking: Unmasking,
    sampling: Sampling,
    seed: int = 0,
) -> list[int]:
    """The ids of a text with all masks filled; of several lengths of its gaps the one that fits best.

    That is the one with the highest mean log-probability of a token when it alone is masked.
    """
    _check_lengths(model, fillings)
    filled = [_unmask_one(model, tokenizer, ids, unmasking, sampling, seed) for ids in fillings]
    return max(filled, key=lambda ids: _score(model, tokenizer, ids)) if len(filled) > 1 else filled[0]


def _check_lengths(model: MaskedLanguageModel, fillings: Sequence[list[int]]) -> None:
    limit, longest = find_max_length(model.encoder), max(map(len, fillings))
    if limit is not None and longest > limit:
        raise InputError(
            f"the text and its masks have {longest} tokens, the model takes {limit}; shorten it, or ask for less"
        )


def _unmask_one(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    ids: list[int],
    unmasking: Unmasking,
    sampling: Sampling,
    seed: int,
) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    filled = torch.tensor(ids)
    places = (filled == tokenizer.mask_token_id).nonzero()[:, 0]
    for block, counts in unmasking.plan(places):
        for count in counts:
            left = block[filled[block] == tokenizer.mask_token_id]
            logits = _predict(model, tokenizer, filled[None], torch.zeros_like(left), left)
            tokens = sampling.choose(logits, generator)
            if unmasking.strategy == "random":
                kept = torch.randperm(len(left), generator=generator)[:count]
            else:
                confidence = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
                kept = confidence.argsort(descending=True, stable=True)[:count]
            filled[left[kept]] = tokens[kept]
    found: list[int] = filled.tolist()
    return found


def _score(model: MaskedLanguageModel, tokenizer: Tokenizer, ids: list[int]) -> float:
    """The mean log-probability of a token of the text when it alone is masked."""
    whole, total = torch.tensor(ids), 0.0
    for places in torch.arange(1, len(ids) - 1).split(_COPIES_AT_ONCE):
        rows = torch.arange(len(places))
        copies = whole.repeat(len(places), 1)
        copies[rows, places] = tokenizer.mask_token_id
        logits = _predict(model, tokenizer, copies, rows, places)
        total += float(logits.log_softmax(-1)[rows, whole[places]].sum())
    return total / (len(ids) - 2)


def _predict(model: MaskedLanguageModel, tokenizer: Tokenizer, ids: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """(N, V) logits at places of rows, on the CPU; special tokens, and those without a text, are impossible."""
    device = next(model.parameters()).device
    hidden = encode(model.encoder, from_padded(ids.to(device)))
    logits = model.predict(hidden[rows.to(device), places.to(device) - int(model.predicts_next)]).float().cpu()
    logits[:, [*tokenizer.all_special_ids]] = -math.inf
    logits[:, tokenizer.vocab_size :] = -math.inf
    return logits
