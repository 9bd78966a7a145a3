"""What a trained model knows, for its report: right answers by frequency and part of speech, a map of words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from maskwright.batch import PackedBatch, find_asked, from_padded
from maskwright.errors import InputError
from maskwright.inference.visualize import split_text
from maskwright.models.any_encoder import encode, find_input_embedding, find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.prediction import shift_left
from maskwright.runs.folder import RunFolder
from maskwright.storage import write_text
from maskwright.tasks.ner.examples import RawSentence, read_conll
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
_CONLLU_COLUMNS = 10
_SENTENCES_AT_A_TIME = 32
_MOST_TAGS = 18
"""Universal Dependencies has 17 parts of speech; of a finer set of tags the rarest are counted together."""
_OTHER_TAGS = "others"
_NO_TAG = -1


@dataclass(frozen=True)
class Band:
    """Held-out tokens of about the same frequency, or of the same part of speech."""

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
    speech: list[Band] = field(default_factory=list)
    """By part of speech, the most frequent first; empty without `data.parts_of_speech`."""


def write_insight(run: RunFolder, insight: Insight) -> None:
    write_text(run.insight_file, json.dumps(asdict(insight)) + "\n")


def read_insight(run: RunFolder) -> Insight | None:
    """None if the run has none that can be read; then its pictures are left out."""
    try:
        return TypeAdapter(Insight).validate_json(run.insight_file.read_bytes())
    except (OSError, ValidationError):
        return None


def look_into(
    model: MaskedLanguageModel,
    held_out: Iterable[PackedBatch],
    token_counts: Tensor,
    tokenizer: Tokenizer,
    tagged: Sequence[RawSentence] = (),
) -> Insight:
    """`token_counts` (V,) are those of the training text; `tagged` are sentences with parts of speech."""
    words, explained = map_words(model, token_counts, tokenizer)
    speech = compute_speech_bands(model, tagged, tokenizer)
    return Insight(compute_bands(model, held_out, token_counts), words, explained, speech)


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
            _, labels, best = _answer(model, part.to(device))
            bands = band_of[labels]
            sums += torch.stack(
                [torch.bincount(some, minlength=len(_BAND_LABELS)) for some in (bands, bands[best == labels])]
            )
    return [Band(label, asked, right) for label, asked, right in zip(_BAND_LABELS, *sums.tolist(), strict=True)]


def _answer(model: MaskedLanguageModel, batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Which places (B, S) are asked for under the masks of every evaluation, their labels and best answers (N,)."""
    corrupted = model.corrupt_for_evaluation(batch, EVALUATION_SEED, EVALUATION_RATIO)
    is_asked = find_asked(corrupted.labels)
    hidden = encode(model.encoder, corrupted.batch, corrupted.is_causal)
    return is_asked, corrupted.labels[is_asked], model.predict(hidden[is_asked]).argmax(-1)


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


def read_parts_of_speech(source: str | None) -> list[RawSentence]:
    """Sentences of CoNLL-U, or of columns of which the first has words and the second their parts of speech."""
    if source is None:
        return []
    sentences, _ = read_conll(Path(source), _choose_word)
    if not sentences:
        raise InputError(
            f"data.parts_of_speech: {source} has no sentence; expected CoNLL-U, or a word and a tag a line"
        )
    return sentences


def _choose_word(cells: Sequence[str]) -> tuple[str, str] | None:
    """The ranges (3-4) and empty nodes (8.1) of CoNLL-U are no words of their own."""
    if len(cells) != _CONLLU_COLUMNS:
        return cells[0], cells[1]
    return (cells[1], cells[3]) if cells[0].isdecimal() else None


@torch.no_grad()
def compute_speech_bands(
    model: MaskedLanguageModel, sentences: Sequence[RawSentence], tokenizer: Tokenizer
) -> list[Band]:
    """Right answers under the masks of every evaluation, on the tokens of tagged words."""
    counts = Counter(tag for sentence in sentences for tag in sentence.tags)
    names = sorted(counts, key=lambda tag: (-counts[tag], tag))
    place_of = {tag: min(place, _MOST_TAGS - 1) for place, tag in enumerate(names)}
    if len(names) > _MOST_TAGS:
        names = [*names[: _MOST_TAGS - 1], _OTHER_TAGS]
    device = next(model.parameters()).device
    sums = torch.zeros(2, len(names), dtype=torch.long)
    with evaluation_mode(model):
        for batch, tags in _build_tagged(sentences, tokenizer, place_of, find_max_length(model.encoder)):
            is_asked, labels, best = _answer(model, batch.to(device))
            asked_tags = (shift_left(tags, batch) if model.predicts_next else tags)[is_asked.cpu()]
            is_word = asked_tags >= 0
            for row, chosen in enumerate((is_word, is_word & (best == labels).cpu())):
                sums[row] += torch.bincount(asked_tags[chosen], minlength=len(names))
    return [Band(name, asked, right) for name, asked, right in zip(names, *sums.tolist(), strict=True)]


def _build_tagged(
    sentences: Sequence[RawSentence], tokenizer: Tokenizer, place_of: Mapping[str, int], max_length: int | None
) -> Iterator[tuple[PackedBatch, Tensor]]:
    """Batches of sentences, and the place of each token's tag (B, S); what is too long for the model is left out."""
    encoded = (_tag_tokens(sentence, tokenizer, place_of) for sentence in sentences)
    fitting = ((ids, tags) for ids, tags in encoded if max_length is None or len(ids) <= max_length)
    seen = 0
    while seen < _MOST_TOKENS and (rows := list(islice(fitting, _SENTENCES_AT_A_TIME))):
        seen += sum(len(ids) for ids, _ in rows)
        yield (
            from_padded(
                _pad([ids for ids, _ in rows], tokenizer.pad_token_id), _pad([[1] * len(ids) for ids, _ in rows], 0)
            ),
            _pad([tags for _, tags in rows], _NO_TAG),
        )


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def _tag_tokens(
    sentence: RawSentence, tokenizer: Tokenizer, place_of: Mapping[str, int]
) -> tuple[list[int], list[int]]:
    """The ids of a sentence, and for each the place of its word's tag."""
    ends = np.cumsum([len(word) + 1 for word in sentence.words])
    (encoding,) = tokenizer.encode_spans([" ".join(sentence.words)])
    last_chars = [end - 1 for _, end in encoding.offsets]  # a token may begin with the space before its word
    tags = [place_of[sentence.tags[word]] for word in np.searchsorted(ends, last_chars, side="right").tolist()]
    return [tokenizer.cls_token_id, *encoding.ids, tokenizer.sep_token_id], [_NO_TAG, *tags, _NO_TAG]
