"""Cloze questions with one token as the answer, and its rank among all tokens (LAMA, Petroni et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from maskwright.errors import InputError, RunError
from maskwright.evaluation.answers import AskedPlaces, score_answers
from maskwright.evaluation.records import Record, check_text, read_records
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

MASK_SPELLINGS = ("[MASK]", "<mask>")


class Unasked(StrEnum):
    """The reason why an item is not scored."""

    SEVERAL_MASKS = "several masked places"
    SEVERAL_TOKENS = "answer of several tokens"
    UNKNOWN = "answer not in the vocabulary"
    TOO_LONG = "longer than the model"


@dataclass(frozen=True)
class ClozeItem:
    text: str
    """The text with `[MASK]` in place of the answer."""
    answer: str
    relation: str


@dataclass(frozen=True)
class AnswerRanks:
    """One value for each item, in their order."""

    ranks: NDArray[np.int64]
    """From 1, the best; tokens that are as probable as the answer stand before it. 0 where nothing was asked."""
    unasked: list[Unasked | None]


def read_cloze(sources: Sequence[str]) -> list[ClozeItem]:
    """Records of LAMA's files: `masked_sentences`, or `evidences` with a `masked_sentence` and an `obj_surface` each.

    The answer is what stood in the sentence, `obj_surface` where it is given, else `obj_label`. Relations are
    `predicate_id`, or else files.
    """
    return [item for record in read_records(sources) for item in _read_items(record)]


def _read_items(record: Record) -> list[ClozeItem]:
    fields = record.fields
    if isinstance(fields.get("evidences"), list) and all(isinstance(one, dict) for one in fields["evidences"]):
        found = [(one.get("masked_sentence"), one.get("obj_surface")) for one in fields["evidences"]]
    elif isinstance(fields.get("masked_sentences"), list):
        found = [(sentence, None) for sentence in fields["masked_sentences"]]
    else:
        raise record.refuse_missing("no list 'masked_sentences' or 'evidences'")
    relation = record.read_label("predicate_id")
    items = []
    for sentence, surface in found:
        text = check_text(sentence, "masked_sentence", record.where)
        for spelling in MASK_SPELLINGS:
            text = text.replace(spelling, MASK_SPELLINGS[0])
        if MASK_SPELLINGS[0] not in text:
            raise InputError(f"{record.where} has no {' or '.join(MASK_SPELLINGS)} in its sentence; mark the place")
        answer = record.read_text("obj_label") if surface is None else check_text(surface, "obj_surface", record.where)
        items.append(ClozeItem(text, answer, relation))
    return items


def rank_answers(model: MaskedLanguageModel, tokenizer: Any, items: Sequence[ClozeItem]) -> AnswerRanks:
    """The rank of each answer that is a single token of the tokenizer."""
    if model.evaluates_causally:
        raise InputError(
            "the model reads from left to right and does not see what follows a masked place; use a masked model"
        )
    tokenizer = as_tokenizer(tokenizer)
    prompts = _build_prompts(tokenizer, items, find_max_length(model.encoder))
    asked = [prompt for prompt in prompts if isinstance(prompt, AskedPlaces)]
    unasked = [None if isinstance(prompt, AskedPlaces) else prompt for prompt in prompts]
    ranks = np.zeros(len(items), dtype=np.int64)
    found = [int(rank) for (rank,) in score_answers(model, tokenizer.pad_token_id, asked, _rank)]
    if found and not min(found):  # NaN is not even equal to itself
        raise RunError("the model gives scores that are not finite, so its weights are damaged; use another checkpoint")
    ranks[[reason is None for reason in unasked]] = found
    return AnswerRanks(ranks, unasked)


def _build_prompts(tokenizer: Tokenizer, items: Sequence[ClozeItem], limit: int | None) -> list[AskedPlaces | Unasked]:
    masked = tokenizer.encode_batch([item.text.replace(MASK_SPELLINGS[0], tokenizer.mask_token) for item in items])
    filled = tokenizer.encode_batch([item.text.replace(MASK_SPELLINGS[0], item.answer) for item in items])
    return [_build_prompt(tokenizer, *pair, limit) for pair in zip(masked, filled, strict=True)]


def _build_prompt(
    tokenizer: Tokenizer, masked: list[int], filled: list[int], limit: int | None
) -> AskedPlaces | Unasked:
    """The answer is the token that the filled text has where the other is masked: so it has its space, if any."""
    if masked.count(tokenizer.mask_token_id) > 1:
        return Unasked.SEVERAL_MASKS
    place = masked.index(tokenizer.mask_token_id)
    if len(filled) != len(masked) or [*filled[:place], *filled[place + 1 :]] != [*masked[:place], *masked[place + 1 :]]:
        return Unasked.SEVERAL_TOKENS
    if filled[place] == tokenizer.unk_token_id:
        return Unasked.UNKNOWN
    if limit is not None and len(masked) + 2 > limit:
        return Unasked.TOO_LONG
    ids = np.asarray([tokenizer.cls_token_id, *masked, tokenizer.sep_token_id], dtype=np.int64)
    return AskedPlaces(ids, places=np.asarray([place + 1]), labels=np.asarray([filled[place]]))


def _rank(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits >= logits.gather(1, labels[:, None])).sum(dim=1)
