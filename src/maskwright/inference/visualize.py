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
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer import Tokenizer, as_tokenizer


@dataclass(frozen=True)
class PredictionSample:
    """One document's tokens: as they were, as the model saw them, and with its answers in the chosen places."""

    original: list[str]
    masked: list[str]
    predicted: list[str]
    selected: list[bool]

    @property
    def num_correct(self) -> int:
        rows = zip(self.original, self.predicted, self.selected, strict=True)
        return sum(original == predicted for original, predicted, selected in rows if selected)


class PredictionView:
    """Samples that print themselves: plain as a string, coloured in a terminal, as HTML in a notebook."""

    def __init__(self, samples: list[PredictionSample]) -> None:
        self.samples = samples

    def __str__(self) -> str:
        lines = []
        for number, sample in enumerate(self.samples, start=1):
            lines += [
                f"Sample {number}",
                f"Original:     {join_tokens(sample.original)}",
                f"Masked Input: {join_tokens(sample.masked)}",
                f"Prediction:   {join_tokens(sample.predicted)}",
                "-" * 80,
            ]
        return "\n".join(lines)

    def print(self, console: Console | None = None) -> None:
        """Right answers in green, wrong ones in red."""
        console = console or Console()
        for number, sample in enumerate(self.samples, start=1):
            console.print(f"[bold]Sample {number}[/bold]  {sample.num_correct} of {sum(sample.selected)} right")
            for title, tokens in (
                ("Original:     ", sample.original),
                ("Masked Input: ", sample.masked),
                ("Prediction:   ", sample.predicted),
            ):
                console.print(Text(title, style="dim") + _colour(tokens, sample), soft_wrap=True)
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
) -> PredictionView:
    """The same without printing; fixed masks, so that two calls show the same questions."""
    tokenizer = as_tokenizer(tokenizer)
    batch = as_packed(inputs).to(next(mlm_model.parameters()).device)
    was_training = mlm_model.training
    mlm_model.eval()
    corrupted = mlm_model.corrupt(batch, seed, 0)
    logits = mlm_model(corrupted.batch).logits
    mlm_model.train(was_training)
    predicted = torch.where(corrupted.selected, logits.argmax(dim=-1), batch.input_ids)
    samples = []
    for row, document in _first_documents(batch, num_samples):
        place = batch.document_ids[row] == document
        columns = (batch.input_ids, corrupted.batch.input_ids, predicted)
        original, masked, answers = (_tokens(tokenizer, ids[row][place]) for ids in columns)
        samples.append(PredictionSample(original, masked, answers, corrupted.selected[row][place].tolist()))
    return PredictionView(samples)


def join_tokens(tokens: list[str]) -> str:
    """Readable text; WordPiece continuations are joined to their word, [CLS] and [SEP] left out."""
    return " ".join(token for token in tokens if token not in ("[CLS]", "[SEP]")).replace(" ##", "")


def _first_documents(batch: PackedBatch, limit: int) -> list[tuple[int, int]]:
    found = []
    for row, document_ids in enumerate(batch.document_ids.tolist()):
        found += [(row, document) for document in sorted({*document_ids} - {0})]
        if len(found) >= limit:
            break
    return found[:limit]


def _tokens(tokenizer: Tokenizer, ids: Tensor) -> list[str]:
    return [tokenizer.token(token_id) for token_id in ids.tolist()]


def _pieces(tokens: list[str], sample: PredictionSample) -> list[tuple[str, str]]:
    """Each token with its role: plain, masked, right or wrong."""
    pieces = []
    for place, token in enumerate(tokens):
        role = "plain"
        if sample.selected[place]:
            is_right = sample.predicted[place] == sample.original[place]
            role = "masked" if tokens is not sample.predicted else "right" if is_right else "wrong"
        pieces.append((token, role))
    return pieces


_STYLES = {"plain": "", "masked": "bold", "right": "bold green", "wrong": "bold red"}
_COLOURS = {"masked": "#555", "right": "#18794e", "wrong": "#b42318"}


def _colour(tokens: list[str], sample: PredictionSample) -> Text:
    text = Text()
    for token, role in _pieces(tokens, sample):
        if token in ("[CLS]", "[SEP]"):
            continue
        if token.startswith("##"):
            text.append(token.removeprefix("##"), style=_STYLES[role])
        else:
            text.append(" " if text else "")
            text.append(token, style=_STYLES[role])
    return text


def _sample_html(number: int, sample: PredictionSample) -> str:
    rows = []
    for title, tokens in (("Original", sample.original), ("Masked", sample.masked), ("Predicted", sample.predicted)):
        words = []
        for token, role in _pieces(tokens, sample):
            if token in ("[CLS]", "[SEP]"):
                continue
            space, token = ("", token.removeprefix("##")) if token.startswith("##") else (" ", token)
            escaped = html.escape(token)
            if role != "plain":
                escaped = f'<b style="color:{_COLOURS[role]}">{escaped}</b>'
            words.append(space + escaped)
        rows.append(f"<tr><th>{title}</th><td>{''.join(words)}</td></tr>")
    score = f"{sample.num_correct} of {sum(sample.selected)} right"
    return f'<table class="sample"><caption>Sample {number}: {score}</caption>{"".join(rows)}</table>'
