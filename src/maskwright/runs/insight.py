"""What a trained model knows, for its report: right answers by the frequency of tokens, and a map of frequent words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from maskwright.batch import PackedBatch, find_asked
from maskwright.inference.visualize import split_text
from maskwright.models.any_encoder import encode, find_input_embedding
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.folder import RunFolder
from maskwright.storage import write_text
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.held_out import EVALUATION_RATIO, EVALUATION_SEED

_LIMITS = (1_000.0, 100.0, 10.0)
"""Of the bands, in tokens per million of the training text."""
_BAND_LABELS = ("over 1,000", "100 to 1,000", "10 to 100", "under 10")
_MOST_TOKENS = 2**15
"""Held-out tokens that are looked at: seconds of a small model on a CPU, and bands of hundreds of answers."""
_TOKENS_AT_A_TIME = 2**11
"""So that logits take little memory, whatever the vocabulary."""
_MOST_WORDS, _FEWEST_WORDS, _SHORTEST_WORD = 150, 3, 3
_MOST_CANDIDATES = 2_000


@dataclass(frozen=True)
class Band:
    """Held-out tokens of about the same frequency."""

    label: str
    asked: int
    right: int

    @property
    def accuracy(self) -> float | None:
        return self.right / self.asked if self.asked else None


@dataclass(frozen=True)
class Insight:
    bands: list[Band]
    words: list[tuple[str, float, float]]
    """The most frequent first, with places on the map."""
    explained: float
    """The share of the words' variance that the map shows."""


def write_insight(run: RunFolder, insight: Insight) -> None:
    write_text(run.insight_file, json.dumps(asdict(insight)) + "\n")


def read_insight(run: RunFolder) -> Insight | None:
    """None if the run has none that can be read; then its pictures are left out."""
    try:
        return TypeAdapter(Insight).validate_json(run.insight_file.read_bytes())
    except (OSError, ValidationError):
        return None


def look_into(
    model: MaskedLanguageModel, held_out: Iterable[PackedBatch], token_counts: Tensor, tokenizer: Tokenizer
) -> Insight:
    """`token_counts` (V,) are those of the training text."""
    words, explained = map_words(model, token_counts, tokenizer)
    return Insight(compute_bands(model, held_out, token_counts), words, explained)


@torch.no_grad()
def compute_bands(
    model: MaskedLanguageModel, held_out: Iterable[PackedBatch], token_counts: Tensor, most_tokens: int = _MOST_TOKENS
) -> list[Band]:
    """Right answers under the masks of every evaluation, on the first held-out tokens."""
    device = next(model.parameters()).device
    per_million = token_counts.double() * 1e6 / token_counts.sum().clamp(min=1)
    band_of = torch.stack([per_million < limit for limit in _LIMITS]).sum(0).to(device)
    sums = torch.zeros(2, len(_BAND_LABELS), dtype=torch.long, device=device)
    seen = 0
    with evaluation_mode(model):
        for part in _split(held_out):
            if seen >= most_tokens:
                break
            seen += part.num_tokens()
            corrupted = model.corrupt_for_evaluation(part.to(device), EVALUATION_SEED, EVALUATION_RATIO)
            is_asked = find_asked(corrupted.labels)
            labels = corrupted.labels[is_asked]
            best = model.predict(encode(model.encoder, corrupted.batch, corrupted.is_causal)[is_asked]).argmax(-1)
            bands = band_of[labels]
            sums += torch.stack(
                [torch.bincount(some, minlength=len(_BAND_LABELS)) for some in (bands, bands[best == labels])]
            )
    return [Band(label, asked, right) for label, asked, right in zip(_BAND_LABELS, *sums.tolist(), strict=True)]


def _split(batches: Iterable[PackedBatch]) -> Iterable[PackedBatch]:
    for batch in batches:
        step = max(1, _TOKENS_AT_A_TIME // batch.input_ids.shape[1])
        for start in range(0, batch.num_rows, step):
            yield batch.rows(start, start + step)


@torch.no_grad()
def map_words(
    model: MaskedLanguageModel, token_counts: Tensor, tokenizer: Tokenizer
) -> tuple[list[tuple[str, float, float]], float]:
    """The two principal components of the input embeddings of frequent whole words; nothing without such embeddings."""
    embedding = find_input_embedding(model.encoder)
    if embedding is None:
        return [], 0.0
    ordered = token_counts.argsort(descending=True, stable=True)[:_MOST_CANDIDATES]
    ids = [number for number in ordered.tolist() if token_counts[number]]
    pieces = split_text(tokenizer, ids)
    chosen = [
        (number, piece.strip())
        for number, piece in zip(ids, pieces, strict=True)
        if piece.startswith(" ") and piece.strip().isalpha() and len(piece.strip()) >= _SHORTEST_WORD
    ][:_MOST_WORDS]
    if len(chosen) < _FEWEST_WORDS:
        return [], 0.0
    vectors = embedding.weight.detach().cpu()[[number for number, _ in chosen]].double()
    centred = vectors - vectors.mean(0)
    left, lengths, _ = torch.linalg.svd(centred, full_matrices=False)
    places = (left[:, :2] * lengths[:2]).tolist()
    explained = float(lengths[:2].square().sum() / lengths.square().sum())
    return [(word, x, y) for (_, word), (x, y) in zip(chosen, places, strict=True)], explained
