"""`maskwright mine` and `maskwright.mine`: documents that a retriever takes for answers, and that are none."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from maskwright.errors import InputError
from maskwright.inference.search.lexical import BM25, LexicalIndex
from maskwright.inference.search.nearest import Floats, take_best
from maskwright.inference.search.rerank import Reranker
from maskwright.inference.search.retriever import open_retriever
from maskwright.ownership import owning
from maskwright.storage import write_text
from maskwright.suggestions import OUT, OVERWRITE, checks_arguments, name_option, refuse_below
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.retrieval.collection import (
    TRAIN_SPLIT,
    find_qrels,
    is_collection,
    read_collection,
    read_documents,
)
from maskwright.tasks.retrieval.examples import read_retrieval
from maskwright.terminal import CleanConsole, say

DEPTH, NUM_NEGATIVES = 100, 4
_QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class MiningRules:
    """Which of the documents found for a query are its hard negatives: the first that pass."""

    num_negatives: int = NUM_NEGATIVES
    depth: int = DEPTH
    """Documents that are looked at."""
    skip: int = 0
    """The first so many, among which unknown answers are most likely."""
    margin: float | None = None
    """A negative's score is lower than that of the answer by this at least."""
    relative_margin: float | None = None
    """The same, as a share of the answer's score."""

    def find_limit(self, score: float) -> float:
        """The highest score of a negative beside an answer with this one."""
        limits = [score - self.margin] if self.margin is not None else []
        if self.relative_margin is not None:
            limits.append(score - self.relative_margin * abs(score))
        return min(limits, default=np.inf)


@dataclass
class _Asked:
    """Queries with the numbers of the documents that answer them."""

    documents: list[str]
    queries: list[str] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)


@checks_arguments
def mine(
    model: str | Path,
    examples: str | Path,
    *,
    out: str | Path,
    corpus: str | Path | None = None,
    num_negatives: int = NUM_NEGATIVES,
    depth: int = DEPTH,
    skip: int = 0,
    margin: float | None = None,
    relative_margin: float | None = None,
    teacher: str | Path | None = None,
    precision: str | None = None,
    overwrite: bool = False,
    console: Console | None = None,
) -> Path:
    """Write examples with hard negatives, found by a retriever or by `bm25`, as a file for `finetune retrieval`.

    `examples` are a collection (its `train` judgements), a file of its qrels, or a table of queries and documents that
    answer them; negatives come from all its documents, or from those of `corpus`. Of the first `depth` documents of a
    query without the first `skip`, those are taken that are not known to answer it, whose text was not taken before
    and whose score keeps the margins. Each line has the scores of its documents; those of a reranker if one is named as
    `teacher`, which `finetune retrieval` and `rerank` then learn (`loss="margin-mse"`, `"kl"`, `"mse"`).
    """
    refuse_below(1, num_negatives=num_negatives, depth=depth)
    refuse_below(0, skip=skip)
    if skip >= depth:
        raise InputError(f"the first {skip} of {depth} documents are skipped, which leaves none; raise --depth")
    rules = MiningRules(num_negatives, depth, skip, margin, relative_margin)
    path, shown = Path(out), console or CleanConsole()
    if path.suffix != ".jsonl":
        raise InputError(f"{path} is no .jsonl file, which mined examples are written as; choose another {OUT}")
    with owning(path):
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists; choose another {OUT}, or add {OVERWRITE}")
        asked = _read_asked(examples, corpus)
        reranker = None if teacher is None else Reranker(str(teacher), precision)
        tally: Counter[str] = Counter()
        scores = _score_words(asked) if str(model) == BM25 else _score_vectors(str(model), asked, precision)
        records = (
            record for number, row in enumerate(scores) for record in _mine_query(asked, number, row, rules, tally)
        )
        taught = records if reranker is None else _teach(records, reranker)
        lines = [json.dumps(record, ensure_ascii=False) for record in taught]
        if not lines:
            raise InputError(
                f"no document of {examples} can be a hard negative under these margins ({_describe(tally)}); loosen"
                " them"
            )
        write_text(path, "".join(f"{line}\n" for line in lines))
    mean = tally["negatives"] / len(lines)
    report = partial(say, shown)
    report(f"{path}: {len(lines):,} examples of {len(asked.queries):,} queries, {mean:.1f} hard negatives each")
    report(f"left out: {_describe(tally)}")
    return path


def _describe(tally: Counter[str]) -> str:
    kinds = {
        "answers": "known answers",
        "margin": "documents within the margin",
        "twice": "documents with the same text",
        "without": "examples without a negative",
    }
    return ", ".join(f"{tally[name]:,} {kind}" for name, kind in kinds.items())


def _read_asked(examples: str | Path, corpus: str | Path | None) -> _Asked:
    qrels = find_qrels(examples)
    if qrels is not None or is_collection(examples):
        if corpus is not None:
            raise InputError(f"{examples} has a corpus of its own; leave {name_option('corpus')} out")
        folder, split = qrels or (Path(examples), None)
        collection = read_collection(folder, split, TRAIN_SPLIT)
        ids = [name for name, text in collection.documents.items() if text]
        places = {name: place for place, name in enumerate(ids)}
        asked = _Asked([collection.documents[name] for name in ids])
        for query, grades in collection.grades.items():
            asked.queries.append(collection.queries[query])
            asked.answers.append([places[name] for name, grade in grades.items() if grade > 0 and name in places])
        return asked
    config = TaskConfig(task="retrieval", model="", train=str(examples), num_negatives=None)
    found = read_retrieval(examples, config).examples
    texts = [text for one in found for text in one.texts[1:]]
    if corpus is not None:
        texts += [text for _, text, _ in read_documents(corpus) if text]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    answers: dict[str, dict[int, None]] = {}
    for one in found:
        answers.setdefault(one.texts[0], {})[places[one.texts[1]]] = None
    return _Asked(list(places), list(answers), [list(one) for one in answers.values()])


def _score_words(asked: _Asked) -> Iterator[Floats]:
    """The scores of all documents, query by query."""
    lexical = LexicalIndex.build(asked.documents)
    return (lexical.score_all(query) for query in asked.queries)


def _score_vectors(model: str, asked: _Asked, precision: str | None) -> Iterator[Floats]:
    retriever = open_retriever(model, precision=precision)
    part = retriever.store_texts(asked.documents)
    queries = retriever.embed_queries(asked.queries)
    for start in range(0, len(asked.queries), _QUERIES_AT_ONCE):
        yield from retriever.score_all(queries[start : start + _QUERIES_AT_ONCE], *part)


def _mine_query(
    asked: _Asked, number: int, scores: Floats, rules: MiningRules, tally: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The examples of a query: one of each document that answers it."""
    answers = asked.answers[number]
    best = take_best(scores[None], min(len(scores), rules.depth))[0]
    known = {_fold(asked.queries[number]), *(_fold(asked.documents[place]) for place in answers)}
    found = [place for place in best[rules.skip :].tolist() if place not in set(answers)]
    tally["answers"] += len(best[rules.skip :]) - len(found)
    for answer in answers:
        limit, seen, negatives = rules.find_limit(float(scores[answer])), set(known), list[int]()
        for place in found:
            if len(negatives) == rules.num_negatives:
                break
            text = _fold(asked.documents[place])
            if scores[place] > limit:
                tally["margin"] += 1
            elif text in seen:
                tally["twice"] += 1
            else:
                seen.add(text)
                negatives.append(place)
        tally["negatives"] += len(negatives)
        if not negatives:
            tally["without"] += 1
            continue
        yield {
            "query": asked.queries[number],
            "positive": asked.documents[answer],
            "negatives": [asked.documents[place] for place in negatives],
            "scores": [round(float(scores[place]), 6) for place in (answer, *negatives)],
        }


def _teach(records: Iterator[dict[str, Any]], reranker: Reranker) -> Iterator[dict[str, Any]]:
    """The same with a reranker's scores of the documents."""
    while part := list(islice(records, _QUERIES_AT_ONCE)):
        documents = [[one["positive"], *one["negatives"]] for one in part]
        scores = reranker.score([one["query"] for one in part], documents)
        yield from (one | {"scores": own} for one, own in zip(part, scores, strict=True))


def _fold(text: str) -> str:
    """The same for texts that differ only in case and spaces."""
    return " ".join(text.casefold().split())
