"""`embeddings`: do the vectors of texts say how similar they are, and which class their neighbours have?

n vectors, D width, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.evaluation.agreement import Agreement
from maskwright.evaluation.figures import AnyMeasure, Difference, Figure, Measure, compute_differences, compute_figures
from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.inference.precision import Computing
from maskwright.runs.eval.report import Report
from maskwright.tasks.examples import ColumnNames, Example, ExampleFile, read_examples
from maskwright.tasks.labels import collect_classes, find_class, read_label
from maskwright.tasks.sequence.regression import Regression

DEFAULT_NEIGHBORS = 10
_Measured = tuple[int, list[AnyMeasure]]
"""The number of items, and the measures of them."""


@dataclass(frozen=True)
class EmbeddingOptions:
    train: str | None = None
    """Labelled texts to find neighbors in; None: those of the same file but the text itself."""
    neighbors: int | None = None
    pooling: str | None = None
    """None: the model's own, or the mean."""
    computing: Computing = field(default_factory=Computing)


@dataclass(frozen=True)
class _Files:
    pairs: list[ExampleFile]
    texts: list[ExampleFile]
    known: ExampleFile | None

    def list_texts(self) -> list[str]:
        """Every text once."""
        files = [*self.pairs, *self.texts, *([] if self.known is None else [self.known])]
        examples = [example for file in files for example in file.examples]
        return list(dict.fromkeys(text for one in examples for text in (one.text, one.second) if text is not None))


def evaluate_embeddings(models: Sequence[str], sources: Sequence[str], options: EmbeddingOptions) -> Report:
    """Pairs with scores are judged by correlation, texts with classes by their nearest neighbors."""
    files = _read_files(sources, options)
    num_neighbors = options.neighbors or DEFAULT_NEIGHBORS
    measured = [_measure_files(_open_pipeline(name, options), files, num_neighbors) for name in models]
    all_items = {name: {("file", name): np.ones(count, dtype=bool)} for name, (count, _) in measured[0].items()}
    figures: list[list[Figure]] = [
        [line for name, (_, measures) in one.items() for line in compute_figures(measures, all_items[name])]
        for one in measured
    ]
    differences: list[Difference] | None = None
    if len(measured) == 2:
        differences = [
            line
            for name, groups in all_items.items()
            for line in compute_differences(measured[0][name][1], measured[1][name][1], groups)
        ]
    score = "cosines of vectors"
    if files.texts:
        among = "the other texts of the file" if files.known is None else str(files.known.path)
        score += f"; classes by {num_neighbors} nearest neighbors among {among}"
    totals = {"files": len(all_items), "texts": len(files.list_texts())}
    return Report("embeddings", tuple(models), score, "items", tuple(figures), differences, {}, totals)


def _read_files(sources: Sequence[str], options: EmbeddingOptions) -> _Files:
    """All that can be refused before a model is read."""
    read = [read_examples(source, ColumnNames()) for source in dict.fromkeys(sources)]
    pairs = [file for file in read if file.columns.second is not None]
    texts = [file for file in read if file.columns.second is None]
    for file in pairs:
        Regression().check_examples(file.examples)
    for file in texts:
        collect_classes(_read_classes(file.examples), len(file.examples), str(file.path))
    for option, is_given in (("--train", options.train), ("--neighbors", options.neighbors)):
        if is_given is not None and not texts:
            raise InputError(f"{option} is for labelled texts, and all files hold pairs; leave it out")
    known = None if options.train is None else read_examples(options.train, ColumnNames())
    if known is not None and known.columns.second is not None:
        raise InputError(f"--train {known.path} holds pairs of texts; give the labelled texts to find neighbors in")
    return _Files(pairs, texts, known)


def _open_pipeline(name: str, options: EmbeddingOptions) -> Pipeline[str, Vectors]:
    given: dict[str, Any] = {} if options.pooling is None else {"pooling": options.pooling}
    if options.pooling == "none":
        raise InputError("--pooling is none, which gives many vectors to a text; to compare texts use mean or cls")
    computing = options.computing
    return pipeline(
        "embed", name, normalize=True, precision=computing.precision or "fp32", compile=computing.compile, **given
    )


def _measure_files(embed: Pipeline[str, Vectors], files: _Files, num_neighbors: int) -> dict[str, _Measured]:
    """By name of file."""
    texts = files.list_texts()
    vectors = dict(zip(texts, embed(texts), strict=True))
    names = _name_files([*files.pairs, *files.texts])
    measured = {names[id(file)]: _measure_pairs(file, vectors) for file in files.pairs}
    return measured | {
        names[id(file)]: _measure_classes(file, files.known, vectors, num_neighbors) for file in files.texts
    }


def _measure_pairs(file: ExampleFile, vectors: dict[str, Vectors]) -> _Measured:
    cosines = [float(vectors[one.text] @ vectors[one.second or ""]) for one in file.examples]
    answers = np.asarray(cosines)[:, None]
    labels = Regression().encode_targets(file.examples).double().numpy()
    return len(labels), [Agreement(name, answers, labels) for name in ("spearman", "pearson")]


def _measure_classes(
    file: ExampleFile, known: ExampleFile | None, vectors: dict[str, Vectors], num_neighbors: int
) -> _Measured:
    neighbors = file if known is None else known
    names = {name: number for number, name in enumerate(sorted(set(_read_classes(neighbors.examples))))}
    classes = np.asarray([names[name] for name in _read_classes(neighbors.examples)])
    actual = np.asarray([find_class(names, read_label(one), one.place) for one in file.examples])
    answers = predict_by_neighbors(
        _stack(file.examples, vectors), _stack(neighbors.examples, vectors), classes, num_neighbors, known is None
    )
    return len(actual), [Measure.of_values("knn_accuracy", (answers == actual).astype(float))]


def _stack(examples: Sequence[Example], vectors: dict[str, Vectors]) -> Vectors:
    return np.stack([vectors[example.text] for example in examples])


def _read_classes(examples: Sequence[Example]) -> list[str]:
    return [read_label(example) for example in examples]


def _name_files(files: Sequence[ExampleFile]) -> dict[int, str]:
    """The name of each file, or its path where two have the same name."""
    names = [file.path.name for file in files]
    return {id(file): file.path.name if names.count(file.path.name) == 1 else str(file.path) for file in files}


_CHUNK = 1_024
_NEARNESS = 1e-3
"""What nearness counts against the number of neighbors: it decides where classes have as many."""

Vectors = NDArray[np.float32]
Classes = NDArray[np.int64]


def predict_by_neighbors(
    vectors: Vectors, known: Vectors, classes: Classes, num_neighbors: int, leaves_one_out: bool
) -> Classes:
    """The class that most of the nearest `known` vectors have, by cosine; all vectors have length 1.

    With `leaves_one_out` the vectors are the known ones, and none is its own neighbor.
    """
    num_others = len(known) - leaves_one_out
    if num_neighbors > num_others:
        raise InputError(f"{num_neighbors} neighbors are asked for, there are {num_others} texts; lower --neighbors")
    answers = [
        _vote(vectors[start : start + _CHUNK] @ known.T, classes, num_neighbors, start if leaves_one_out else None)
        for start in range(0, len(vectors), _CHUNK)
    ]
    return np.concatenate(answers)


def _vote(cosines: NDArray[np.float32], classes: Classes, num_neighbors: int, first: int | None) -> Classes:
    rows = np.arange(len(cosines))
    if first is not None:
        cosines[rows, first + rows] = -np.inf
    nearest = np.argpartition(-cosines, num_neighbors - 1, axis=1)[:, :num_neighbors]
    weights = 1.0 + _NEARNESS / num_neighbors * np.take_along_axis(cosines, nearest, axis=1)
    votes = np.zeros((len(cosines), int(classes.max()) + 1))
    np.add.at(votes, (rows[:, None], classes[nearest]), weights)
    return votes.argmax(axis=1)
