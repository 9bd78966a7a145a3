"""Fill-mask: the most probable tokens for the masked places of texts, as the pipeline of `transformers` answers.

N places, V vocabulary.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError, InputWarning
from maskwright.inference.kind import Kind, Name, Prepared
from maskwright.inference.samples import EncodedBatch, Sample
from maskwright.inference.texts import NUM_SPECIALS, as_texts, choose_max_length, encode_texts, quote
from maskwright.inference.windows import window_around
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode

Candidates = list[dict[str, Any]]
_PLACES_AT_ONCE = 256
"""Rows of the vocabulary's size held at a time."""


@dataclass(frozen=True)
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
        self._has_warned = False

    @property
    def module(self) -> MaskedLanguageModel:
        return self.model

    def prepare(self, items: Sequence[str], name: Name) -> list[Prepared]:
        texts = [self.tokenizer.unify_masks(text) for text in items]
        rows = encode_texts(self.tokenizer, self.encoder, texts, name)
        return [
            Prepared(self._cut(ids, f"{name(place)} ({quote(text)})"))
            for place, (ids, text) in enumerate(zip(rows, items, strict=True))
        ]

    def _cut(self, ids: list[int], name: str) -> list[MaskedSample]:
        mask_token = self.tokenizer.mask_token
        masked = [place for place, token_id in enumerate(ids) if token_id == self.tokenizer.mask_token_id]
        if not masked:
            raise InputError(f"{name} has no {mask_token} to fill: write {mask_token} for a word")
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

    def reduce(self, batch: EncodedBatch[MaskedSample]) -> list[list[tuple[list[float], list[int]]]]:
        """Scores and tokens for each masked place of each sample."""
        shift = int(self.model.predicts_next)  # the answer for a token then stands one place before it
        places, start = [], 0
        for sample in batch.samples:
            places += [start + place - shift for place in sample.places]
            start += len(sample.ids)
        hidden = batch.hidden[torch.tensor(places, device=batch.hidden.device)]
        with evaluation_mode(self.model):
            best = [self._rank(part) for part in hidden.split(_PLACES_AT_ONCE)]
        pairs = [pair for scores, tokens in best for pair in zip(scores.tolist(), tokens.tolist(), strict=True)]
        answers = iter(pairs)
        return [[next(answers) for _ in sample.places] for sample in batch.samples]

    def _rank(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and tokens (N, top_k)."""
        probabilities = self.model.predict(hidden).float().softmax(dim=-1)
        if self.target_ids is None:
            scores, tokens = probabilities.topk(self.top_k)
            return scores, tokens
        target_ids = torch.tensor(self.target_ids, device=hidden.device)
        scores, order = probabilities[:, target_ids].topk(self.top_k)
        return scores, target_ids[order]

    def answer(
        self, prepared: Prepared, reduced: Sequence[list[tuple[list[float], list[int]]]]
    ) -> Candidates | list[Candidates]:
        num_masks = sum(len(found) for found in reduced)
        answers: list[Candidates] = []
        for sample, found in zip(prepared.samples, reduced, strict=True):
            assert isinstance(sample, MaskedSample)
            for place, (scores, tokens) in zip(sample.places, found, strict=True):
                sequences = self._fill(sample.ids, place, tokens, skip_special_tokens=num_masks == 1)
                names = self.tokenizer.backend.decode_batch([[token] for token in tokens], skip_special_tokens=False)
                answers.append(
                    [
                        {"score": score, "token": token, "token_str": name, "sequence": sequence}
                        for score, token, name, sequence in zip(scores, tokens, names, sequences, strict=True)
                    ]
                )
        return answers[0] if num_masks == 1 else answers

    def _fill(self, ids: Sequence[int], place: int, tokens: Sequence[int], skip_special_tokens: bool) -> list[str]:
        """The text with each token in its place; special tokens stay where other masks must stay visible."""
        filled = [[*ids[:place], token, *ids[place + 1 :]] for token in tokens]
        if self.pad_token_id in tokens or self.pad_token_id in ids:
            filled = [[token_id for token_id in one if token_id != self.pad_token_id] for one in filled]
        return list(self.tokenizer.backend.decode_batch(filled, skip_special_tokens=skip_special_tokens))

    def record(self, item: str, answer: Candidates | list[Candidates]) -> dict[str, Any]:
        return {"text": item, "candidates": answer if isinstance(answer[0], list) else [answer]}

    def as_items(self, inputs: Any) -> tuple[list[str], bool]:
        return as_texts(inputs)


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
