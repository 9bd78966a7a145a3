"""Published data as retrieval: documents, questions that are asked over all of them, and pairs that are trained on.

What is trained on and what is asked have no article, premise or intent in common.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

SHARE_TRAINED_ON = 0.8
QUESTIONS_OF_A_PARAGRAPH = 5


@dataclass
class RetrievalSet:
    documents: list[str] = field(default_factory=list)
    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    """Queries, and the numbers of the documents that answer each."""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    """Queries and documents that are trained on."""


def read_squad(file: Path, num_paragraphs: int) -> RetrievalSet:
    """A question finds its paragraph, of `num_paragraphs` of each article; the last articles are asked about."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    found, first_asked = RetrievalSet(), round(SHARE_TRAINED_ON * len(articles))
    for number, article in enumerate(articles):
        for paragraph in article["paragraphs"][:num_paragraphs]:
            found.documents.append(paragraph["context"])
            for question in (one["question"] for one in paragraph["qas"][:QUESTIONS_OF_A_PARAGRAPH]):
                if number < first_asked:
                    found.pairs.append((question, paragraph["context"]))
                else:
                    found.asked.append((question, [len(found.documents) - 1]))
    return found


def read_qnli(file: Path, _: int) -> RetrievalSet:
    """A question finds the sentence that answers it, among those of all questions, answered or not."""
    with file.open(encoding="utf-8", newline="") as lines:
        records = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    groups = [((one["question"], one["sentence"]), one["label"] == "entailment") for one in records if one["sentence"]]
    return _build([[pair] for pair, answers in groups if answers], [pair[1] for pair, _ in groups])


def read_snli(file: Path, _: int) -> RetrievalSet:
    """A premise finds what follows from it, among the hypotheses of all premises."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in records:
        if one["label"] == "entailment":
            groups.setdefault(one["premise"], []).append((one["premise"], one["hypothesis"]))
    return _build(list(groups.values()), [one["hypothesis"] for one in records])


def read_banking77(file: Path, _: int) -> RetrievalSet:
    """A customer's question finds those with the same intent, among every second question of all intents."""
    with file.open(encoding="utf-8", newline="") as lines:
        records = list(csv.DictReader(lines))
    intents: dict[str, list[str]] = {}
    for one in records:
        intents.setdefault(one["category"], []).append(one["text"])
    found, first_asked = RetrievalSet(), round(SHARE_TRAINED_ON * len(intents))
    for number, texts in enumerate(intents.values()):
        start = len(found.documents)
        found.documents += texts[::2]
        places = list(range(start, len(found.documents)))
        if number < first_asked:
            found.pairs += list(pairwise(texts))
        else:
            found.asked += [(text, places) for text in texts[1::2]]
    return found


def _build(groups: list[list[tuple[str, str]]], texts: list[str]) -> RetrievalSet:
    """Of pairs that belong together, the last groups are asked about; equal texts are one document."""
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    first_asked = round(SHARE_TRAINED_ON * len(groups))
    return RetrievalSet(
        list(places),
        [(group[0][0], sorted({places[text] for _, text in group})) for group in groups[first_asked:]],
        [pair for group in groups[:first_asked] for pair in group],
    )


READERS: dict[str, Callable[[Path, int], RetrievalSet]] = {
    "squad": read_squad,
    "qnli": read_qnli,
    "snli": read_snli,
    "banking77": read_banking77,
}


def spread(values: list[Any], most: int) -> list[Any]:
    """Some of all articles: questions about one paragraph are answered alike, right or wrong."""
    return [values[number * len(values) // most] for number in range(most)] if most < len(values) else values
