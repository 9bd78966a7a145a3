"""Original, masked and predicted text, side by side."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from maskwright.batch import PackedBatch, as_packed
from maskwright.errors import check_count
from maskwright.models.any_encoder import encode
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.terminal import CleanConsole
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer
from maskwright.training.compute.device import evaluation_mode

_STYLES = {"plain": "", "masked": "bold", "right": "bold green", "wrong": "bold red"}
_COLOURS = {"masked": "#555", "right": "#18794e", "wrong": "#b42318"}
_BROKEN = "\ufffd"
"""What decoders give for a part of a character."""
_MOST_TOKENS = 8
"""A character has up to four bytes; its first and last token may hold parts of the characters beside it."""


@dataclass(frozen=True)
class PredictionSample:
    """One document: as it was, as the model saw it, and with its answers in the chosen places.

    A text is a list of one piece per token, the space before a word being part of its piece.
    """

    original: list[str]
    masked: list[str]
    predicted: list[str]
    selected: list[bool]
    correct: list[bool]
    """Where a token was chosen and the answer is right."""

    @property
    def num_correct(self) -> int:
        return sum(self.correct)

    def texts(self) -> dict[str, list[tuple[str, str]]]:
        """The three texts by title, each piece with its role: plain, masked, right or wrong."""
        answers = ["right" if correct else "wrong" for correct in self.correct]
        return {
            "Original": self._with_roles(self.original, ["masked"] * len(answers)),
            "Masked Input": self._with_roles(self.masked, ["masked"] * len(answers)),
            "Prediction": self._with_roles(self.predicted, answers),
        }

    def _with_roles(self, pieces: list[str], roles: list[str]) -> list[tuple[str, str]]:
        return [
            (piece.lstrip() if place == 0 else piece, roles[place] if self.selected[place] else "plain")
            for place, piece in enumerate(pieces)
        ]


class PredictionView:
    """Samples that print themselves: plain as a string, coloured in a terminal, as HTML in a notebook."""

    def __init__(self, samples: list[PredictionSample]) -> None:
        self.samples = samples

    def __str__(self) -> str:
        lines = []
        for number, sample in enumerate(self.samples, start=1):
            lines.append(f"Sample {number}")
            for title, pieces in sample.texts().items():
                lines.append(f"{title + ':':<14}" + "".join(piece for piece, _ in pieces))
            lines.append("-" * 80)
        return "\n".join(lines)

    def print(self, console: Console | None = None) -> None:
        """Right answers in green, wrong ones in red."""
        console = console or CleanConsole()
        for number, sample in enumerate(self.samples, start=1):
            console.print(f"[bold]Sample {number}[/bold]  {sample.num_correct} of {sum(sample.selected)} right")
            for title, pieces in sample.texts().items():
                coloured = [(piece, _STYLES[role]) for piece, role in pieces]
                console.print(Text.assemble((f"{title + ':':<14}", "dim"), *coloured), soft_wrap=True)
            console.print("-" * 80, style="dim")

    def _repr_html_(self) -> str:
        return "".join(_sample_html(number, sample) for number, sample in enumerate(self.samples, start=1))


def visualize_mlm_predictions(
    mlm_model: MaskedLanguageModel,
    inputs: PackedBatch | Mapping[str, Tensor] | Tensor,
    tokenizer: Any,
    num_samples: int = 4,
    console: Console | None = None,
) -> PredictionView:
    """Mask the first documents of a batch, let the model fill them, and print the three versions."""
    view = build_prediction_view(mlm_model, inputs, tokenizer, num_samples)
    view.print(console)
    return view


@torch.no_grad()
def build_prediction_view(
    mlm_model: MaskedLanguageModel,
    inputs: PackedBatch | Mapping[str, Tensor] | Tensor,
    tokenizer: Any,
    num_samples: int = 4,
    seed: int = 0,
    *,
    mask_ratio: float | None = None,
) -> PredictionView:
    """The same without printing; fixed masks, so that two calls show the same questions.

    `mask_ratio` None is the model's own ratio.
    """
    check_count("num_samples", num_samples)
    tokenizer = as_tokenizer(tokenizer)
    batch = as_packed(inputs).to(next(mlm_model.parameters()).device)
    corrupted = mlm_model.corrupt(batch, seed, 0, mask_ratio, progress=1.0)
    with evaluation_mode(mlm_model):
        best = mlm_model.predict(encode(mlm_model.encoder, corrupted.batch, corrupted.is_causal)).argmax(dim=-1)
    selected = corrupted.selected
    if mlm_model.predicts_next:  # the answer for a token stands one place before it
        best, selected = best.roll(1, dims=1), selected.roll(1, dims=1)
    predicted = torch.where(selected, best, batch.input_ids)
    correct = selected & (predicted == batch.input_ids)
    samples = []
    for row, document in _first_documents(batch, num_samples):
        ids = batch.input_ids[row]
        is_shown = (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
        place = is_shown & (batch.document_ids[row] == document)
        sample = PredictionSample(
            original=split_text(tokenizer, ids[place].tolist()),
            masked=split_text(tokenizer, corrupted.batch.input_ids[row][place].tolist()),
            predicted=split_text(tokenizer, predicted[row][place].tolist()),
            selected=selected[row][place].tolist(),
            correct=correct[row][place].tolist(),
        )
        samples.append(sample)
    return PredictionView(samples)


def split_text(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The readable text of ids in one piece per token; the tokenizer's own decoder says where spaces go.

    Each token is decoded behind another one, because decoders treat the first token of a text in a way of its own. A
    character of which several tokens hold the bytes is in the piece of the first of them; the others are empty.
    """
    before = tokenizer.decode([tokenizer.mask_token_id], skip_special_tokens=False)

    def read(*ids: int) -> str:
        return tokenizer.decode([tokenizer.mask_token_id, *ids], skip_special_tokens=False).removeprefix(before)

    known = {token_id: read(token_id) for token_id in set(ids)}
    pieces = [known[token_id] for token_id in ids]
    for start in range(len(ids)):
        if _BROKEN in pieces[start]:
            for end in range(start + 2, min(start + _MOST_TOKENS, len(ids)) + 1):
                if _BROKEN not in (whole := read(*ids[start:end])):
                    pieces[start:end] = [whole, *[""] * (end - start - 1)]
                    break
    return pieces


def _first_documents(batch: PackedBatch, limit: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for row, document_ids in enumerate(batch.document_ids.tolist()):
        found += [(row, document) for document in sorted({*document_ids} - {0})]
        if len(found) >= limit:
            break
    return found[:limit]


_LEFT = 'style="text-align: left"'
"""Notebooks set the cells of tables at the right."""


def _sample_html(number: int, sample: PredictionSample) -> str:
    rows = []
    for title, pieces in sample.texts().items():
        text = "".join(_piece_html(piece, role) for piece, role in pieces)
        rows.append(f"<tr><th {_LEFT}>{title}</th><td {_LEFT}>{text}</td></tr>")
    score = f"{sample.num_correct} of {sum(sample.selected)} right"
    return f'<table class="sample"><caption {_LEFT}>Sample {number}: {score}</caption>{"".join(rows)}</table>'


def _piece_html(piece: str, role: str) -> str:
    word = html.escape(piece.lstrip())
    if role != "plain":
        word = f'<b class="{role}" style="color:{_COLOURS[role]}">{word}</b>'
    return " " * (len(piece) - len(piece.lstrip())) + word
