"""Fill the masked tokens of one text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from maskwright.errors import InputError
from maskwright.inference.mask_filling import FillMask, MaskedSample
from maskwright.inference.runner import run_packed
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer


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
    sample = encode_masked(model, tokenizer, text)
    answers = []
    for place, (scores, tokens) in zip(sample.places, _predict(model, tokenizer, sample, top_k), strict=True):
        candidates = []
        for score, token_id in zip(scores, tokens, strict=True):
            token_str = tokenizer.decode([token_id], skip_special_tokens=False)
            candidates.append(Candidate(score, token_id, token_str, _fill(tokenizer, sample, {place: token_id})))
        answers.append(candidates)
    return answers


def predict_masked(model: MaskedLanguageModel, tokenizer: Any, text: str) -> str:
    """The text with every masked token replaced by the most probable one."""
    tokenizer = as_tokenizer(tokenizer)
    sample = encode_masked(model, tokenizer, text)
    best = [tokens[0] for _, tokens in _predict(model, tokenizer, sample, top_k=1)]
    return _fill(tokenizer, sample, dict(zip(sample.places, best, strict=True)))


def mask_text(text: str, positions: int | Sequence[int], mask_token: str = "[MASK]") -> str:
    """Replace the whitespace-separated words at `positions` (from 0); places beyond the text are left out."""
    if isinstance(positions, str) or not isinstance(positions, Iterable):
        positions = [positions]
    chosen = set(positions)
    for position in chosen:
        if not hasattr(position, "__index__"):
            raise InputError(f"position {position!r} is no whole number; positions count words from 0")
    if chosen and min(chosen) < 0:
        raise InputError(f"position {min(chosen)} is negative; positions count words from 0")
    return " ".join(mask_token if place in chosen else word for place, word in enumerate(text.split()))


def encode_masked(model: MaskedLanguageModel, tokenizer: Tokenizer, text: str) -> MaskedSample:
    """A text that has masked tokens, written `[MASK]` or `<mask>`, and fits the model."""
    if not isinstance(model, MaskedLanguageModel):
        raise InputError(
            f"the model is a {type(model).__name__}; give a MaskedLanguageModel, which from_pretrained loads, or use"
            " pipeline('fill-mask', model)"
        )
    if not isinstance(text, str):
        raise InputError(
            f"the text is a {type(text).__name__}; give one text, or use pipeline('fill-mask', ...) for several"
        )
    ids = tokenizer.encode(tokenizer.unify_masks(text))
    places = [place for place, token_id in enumerate(ids) if token_id == tokenizer.mask_token_id]
    if not places:
        raise InputError(f"the text has no {tokenizer.mask_token} to fill: write {tokenizer.mask_token} for a word")
    if max(ids) >= model.vocab_size:
        raise InputError(
            f"the text has token id {max(ids)}, the model knows {model.vocab_size} tokens; use the model's tokenizer"
        )
    limit = find_max_length(model.encoder)
    if limit is not None and len(ids) > limit:
        raise InputError(f"the text has {len(ids)} tokens, the model takes {limit}; shorten it")
    return MaskedSample(ids, places=places)


def _predict(
    model: MaskedLanguageModel, tokenizer: Tokenizer, sample: MaskedSample, top_k: int
) -> list[tuple[list[float], list[int]]]:
    """Scores and tokens for each masked place."""
    kind = FillMask(model, tokenizer, top_k=top_k)
    (found,) = run_packed(
        model.encoder, [sample], kind.reduce, pad_token_id=tokenizer.pad_token_id, find_causal=kind.find_causal
    )
    return found


def _fill(tokenizer: Tokenizer, sample: MaskedSample, tokens: dict[int, int]) -> str:
    """The text with tokens in some places, without the two around it; masks that are left stay visible."""
    filled = [tokens.get(place, token_id) for place, token_id in enumerate(sample.ids)]
    return tokenizer.decode(filled[1:-1], skip_special_tokens=False)
