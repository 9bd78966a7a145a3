"""Fill masked tokens: `fill_mask` for one text, and the kind of prediction for many, as `transformers` answers.

N places, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from tokenizers import Encoding
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError, InputWarning
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, TokenIds, send
from maskwright.inference.runner import Kind, Name, Prepared, run_packed
from maskwright.inference.texts import NUM_SPECIALS, as_texts, choose_max_length, encode_texts, quote, window_around
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer

Candidates = list[dict[str, Any]]
_PLACES_AT_ONCE = 256
_GPU_PLACES_AT_ONCE = 2_048
"""Rows of the vocabulary's size held at a time."""


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
        model.encoder,
        [sample],
        kind.reduce,
        pad_token_id=tokenizer.pad_token_id,
        model=model,
        find_causal=kind.find_causal,
    )
    return found


def _fill(tokenizer: Tokenizer, sample: MaskedSample, tokens: dict[int, int]) -> str:
    """The text with tokens in some places, without the two around it; masks that are left stay visible."""
    filled = [tokens.get(place, token_id) for place, token_id in enumerate(sample.ids)]
    return tokenizer.decode(filled[1:-1], skip_special_tokens=False)


@dataclass
class MaskedSample(Sample):
    places: Sequence[int] = ()
    """The masked tokens to answer for."""


class FillMask(Kind[str, Candidates | list[Candidates]]):
    """One list of candidates for a text with one mask, a list of such lists for one with several.

    A candidate has the keys `score`, `token`, `token_str` and `sequence`. In a text longer than `max_length` each
    mask is answered from the tokens around it, and `sequence` is that part of the text.
    """

    def __init__(
        self,
        model: MaskedLanguageModel,
        tokenizer: Tokenizer,
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        max_length: int | None = None,
    ) -> None:
        if not isinstance(top_k, int) or not 1 <= top_k <= model.vocab_size:
            raise InputError(f"top_k is {top_k!r}; it must lie between 1 and the vocabulary's {model.vocab_size}")
        self.model = model
        self.encoder = model.encoder
        self.tokenizer = tokenizer
        self.pad_token_id = tokenizer.pad_token_id
        self.target_ids = None if targets is None else find_target_ids(tokenizer, targets)
        self.top_k = top_k if self.target_ids is None else min(top_k, len(self.target_ids))
        self._size = choose_max_length(self.encoder, max_length) - NUM_SPECIALS
        self.lacking = f"no text or no {tokenizer.mask_token}"
        self._has_warned = False

    @property
    def module(self) -> MaskedLanguageModel:
        return self.model

    def tokenize(self, items: Sequence[str]) -> list[Encoding]:
        return self.tokenizer.encode_without_spans([self.tokenizer.unify_masks(text) for text in items])

    def prepare(self, items: Sequence[str], name: Name, tokenized: Sequence[Encoding] | None = None) -> list[Prepared]:
        texts = [self.tokenizer.unify_masks(text) for text in items]
        rows = encode_texts(self.tokenizer, self.encoder, texts, name, tokenized)
        return [
            self._prepare(ids, f"{name(place)} ({quote(text)})")
            for place, (ids, text) in enumerate(zip(rows, items, strict=True))
        ]

    def _prepare(self, ids: list[int], name: str) -> Prepared:
        masked = [place for place, token_id in enumerate(ids) if token_id == self.tokenizer.mask_token_id]
        mask_token = self.tokenizer.mask_token
        if not masked:
            return Prepared([], problem=f"{name} has no {mask_token} to fill: write {mask_token} for a word")
        return Prepared(self._cut(ids, masked, name))

    def _cut(self, ids: list[int], masked: list[int], name: str) -> list[MaskedSample]:
        if len(ids) <= self._size:
            return [self._surround(ids, masked)]
        self._warn_of_windows(name, len(ids))
        samples = []
        for place in masked:
            start, stop = window_around(place, len(ids), self._size)
            samples.append(self._surround(ids[start:stop], [place - start]))
        return samples

    def _surround(self, ids: list[int], places: list[int]) -> MaskedSample:
        surrounded = [self.tokenizer.cls_token_id, *ids, self.tokenizer.sep_token_id]
        return MaskedSample(surrounded, places=[place + 1 for place in places])

    def _warn_of_windows(self, name: str, length: int) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"{name} has {length:,} tokens, the model takes {self._size}: each mask of such a text is answered from the"
            f" {self._size} tokens around it, and 'sequence' is that part of the text",
            InputWarning,
            stacklevel=2,
        )

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        return self.model.find_causal(batch)

    def reduce(self, batch: EncodedBatch[MaskedSample]) -> Reduction:
        """Scores and tokens for each masked place of each sample."""
        shift = int(self.model.predicts_next)  # the answer for a token then stands one place before it
        hidden = batch.take([[place - shift for place in sample.places] for sample in batch.samples])
        at_once = _PLACES_AT_ONCE if hidden.device.type == "cpu" else _GPU_PLACES_AT_ONCE
        best = [self._rank(part) for part in hidden.split(at_once)]
        counts = [len(sample.places) for sample in batch.samples]

        def split(scores: Tensor, tokens: Tensor) -> list[list[tuple[list[float], list[int]]]]:
            answers = zip(scores.tolist(), tokens.tolist(), strict=True)
            return [list(islice(answers, count)) for count in counts]

        scores, tokens = (torch.cat(parts) for parts in zip(*best, strict=True))
        return Reduction((scores, tokens), split)

    def _rank(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and tokens (N, top_k)."""
        probabilities = self.model.predict(hidden).float().softmax(dim=-1)
        if self.target_ids is None:
            scores, tokens = probabilities.topk(self.top_k)
            return scores, tokens
        target_ids = send(torch.tensor(self.target_ids), hidden.device)
        scores, order = probabilities[:, target_ids].topk(self.top_k)
        return scores, target_ids[order]

    def answer(
        self, prepared: Prepared, reduced: Sequence[list[tuple[list[float], list[int]]]]
    ) -> Candidates | list[Candidates]:
        return self.answer_all([(prepared, reduced)])[0]

    def answer_all(
        self, asked: Sequence[tuple[Prepared, Sequence[list[tuple[list[float], list[int]]]]]]
    ) -> list[Candidates | list[Candidates]]:
        """The texts of all candidates are decoded together, which the library does on all cores."""
        named = {token for _, reduced in asked for found in reduced for _, tokens in found for token in tokens}
        names = dict(zip(named, self._decode([[token] for token in named], False), strict=True))
        single: list[list[int]] = []
        several: list[list[int]] = []
        for prepared, reduced in asked:
            # special tokens stay where other masks must stay visible
            filled = single if _count_masks(reduced) == 1 else several
            for ids, place, _, tokens in _list_places(prepared, reduced):
                filled += self._fill(ids, place, tokens)
        texts = {True: iter(self._decode(single, True)), False: iter(self._decode(several, False))}
        answers: list[Candidates | list[Candidates]] = []
        for prepared, reduced in asked:
            is_single = _count_masks(reduced) == 1
            candidates = [
                [
                    {"score": score, "token": token, "token_str": names[token], "sequence": next(texts[is_single])}
                    for score, token in zip(scores, tokens, strict=True)
                ]
                for _, _, scores, tokens in _list_places(prepared, reduced)
            ]
            answers.append(candidates[0] if is_single else candidates)
        return answers

    def _fill(self, ids: TokenIds, place: int, tokens: Sequence[int]) -> list[list[int]]:
        """The text with each token in its place."""
        filled = [[*ids[:place], token, *ids[place + 1 :]] for token in tokens]
        if self.pad_token_id in tokens or self.pad_token_id in ids:
            filled = [[token_id for token_id in one if token_id != self.pad_token_id] for one in filled]
        return filled

    def _decode(self, rows: Sequence[list[int]], skips_special_tokens: bool) -> list[str]:
        return list(self.tokenizer.backend.decode_batch(list(rows), skip_special_tokens=skips_special_tokens))

    @property
    def example(self) -> dict[str, Any]:
        return self.describe_answer([{"score": 0.0, "token": 0, "token_str": "", "sequence": ""}])

    def describe_answer(self, answer: Candidates | list[Candidates]) -> dict[str, Any]:
        return {"candidates": answer if isinstance(answer[0], list) else [answer]}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)


def _count_masks(reduced: Sequence[Sequence[Any]]) -> int:
    return sum(len(found) for found in reduced)


def _list_places(
    prepared: Prepared, reduced: Sequence[list[tuple[list[float], list[int]]]]
) -> Iterator[tuple[TokenIds, int, list[float], list[int]]]:
    """Each masked place in the ids of its sample, with the scores and tokens found for it."""
    for sample, found in zip(prepared.samples, reduced, strict=True):
        assert isinstance(sample, MaskedSample)
        for place, (scores, tokens) in zip(sample.places, found, strict=True):
            yield sample.ids, place, scores, tokens


def find_target_ids(tokenizer: Tokenizer, targets: str | Sequence[str]) -> list[int]:
    """A token for each target; of one that is no single token the first piece counts, and a warning says so."""
    vocabulary = tokenizer.backend.get_vocab()
    found: dict[int, None] = {}
    for target in [targets] if isinstance(targets, str) else targets:
        if not isinstance(target, str):
            raise InputError(f"a target is {target!r}; expected a word")
        token_id = vocabulary.get(target)
        if token_id is None:
            token_id = _find_first_piece(tokenizer, target)
        if token_id is not None:
            found[token_id] = None
    if not found:
        raise InputError("none of the targets is a token of the model; give at least one word that it knows")
    return list(found)


def _find_first_piece(tokenizer: Tokenizer, target: str) -> int | None:
    (pieces,) = tokenizer.encode_batch([target])
    if not pieces:
        instead, first = "it is left aside", None
    else:
        instead, first = f"its first piece '{tokenizer.token(pieces[0])}' is taken", pieces[0]
    warnings.warn(f"the target '{target}' is no single token of the model; {instead}", InputWarning, stacklevel=3)
    return first
