"""Fill the masked tokens of a text. V vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from maskwright.errors import InputError
from maskwright.models.encoding import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer import Tokenizer, as_tokenizer
from maskwright.training.modes import evaluation_mode


@dataclass(frozen=True)
class Candidate:
    """One token for one masked place; the fields are named as in the `transformers` fill-mask pipeline."""

    score: float
    token: int
    token_str: str
    sequence: str
    """The whole text with this token in its place."""


def fill_mask(model: MaskedLanguageModel, tokenizer: Any, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """The `top_k` most probable tokens for each masked place of the text, in order."""
    tokenizer = as_tokenizer(tokenizer)
    ids = encode_masked(model, tokenizer, text)
    if not 1 <= top_k <= model.vocab_size:
        raise InputError(f"top_k is {top_k}; it must lie between 1 and the vocabulary's {model.vocab_size}")
    probabilities = _predict(model, ids).softmax(dim=-1)
    places = [place for place, token_id in enumerate(ids) if token_id == tokenizer.mask_token_id]
    answers = []
    for place in places:
        scores, tokens = probabilities[place].topk(top_k)
        candidates = []
        for score, token_id in zip(scores.tolist(), tokens.tolist(), strict=True):
            filled = [*ids[:place], token_id, *ids[place + 1 :]]
            sequence = _decode(tokenizer, filled)
            token_str = tokenizer.decode([token_id], skip_special_tokens=False)
            candidates.append(Candidate(score, token_id, token_str, sequence))
        answers.append(candidates)
    return answers


def predict_masked(model: MaskedLanguageModel, tokenizer: Any, text: str) -> str:
    """The text with every masked token replaced by the most probable one."""
    tokenizer = as_tokenizer(tokenizer)
    ids = encode_masked(model, tokenizer, text)
    best = _predict(model, ids).argmax(dim=-1).tolist()
    filled = [best[place] if ids[place] == tokenizer.mask_token_id else ids[place] for place in range(len(ids))]
    return _decode(tokenizer, filled)


def mask_text(text: str, positions: Sequence[int], mask_token: str = "[MASK]") -> str:
    """Replace the whitespace-separated words at `positions` (from 0); places beyond the text are left out."""
    chosen = set(positions)
    if chosen and min(chosen) < 0:
        raise InputError(f"position {min(chosen)} is negative; positions count words from 0")
    return " ".join(mask_token if place in chosen else word for place, word in enumerate(text.split()))


def encode_masked(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text that has masked tokens and fits the model."""
    ids = tokenizer.encode(text)
    if tokenizer.mask_token_id not in ids:
        raise InputError(f"the text has no {tokenizer.mask_token} to fill: write {tokenizer.mask_token} for a word")
    if max(ids) >= model.vocab_size:
        raise InputError(
            f"the text has token id {max(ids)}, the model knows {model.vocab_size} tokens; use the model's tokenizer"
        )
    limit = find_max_length(model.encoder)
    if limit is not None and len(ids) > limit:
        raise InputError(f"the text has {len(ids)} tokens, the model takes {limit}; shorten it")
    return ids


@torch.no_grad()
def _predict(model: MaskedLanguageModel, ids: list[int]) -> torch.Tensor:
    """Logits (length, V) of one text, without dropout."""
    device = next(model.parameters()).device
    with evaluation_mode(model):
        logits = model(input_ids=torch.tensor([ids], device=device)).logits
    if model.predicts_next:  # the answer for a token stands one place before it
        logits = logits.roll(1, dims=1)
    return logits[0].float().cpu()


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Text without the two tokens around it; masks that are left stay visible."""
    return tokenizer.decode(ids[1:-1], skip_special_tokens=False)
