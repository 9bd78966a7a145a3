"""`maskwright eval` and `maskwright.evaluate`: one model or two on a suite; `mlm`, fixed masks on texts, is here."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.config import Settings, list_settings
from maskwright.errors import InputError, InputWarning
from maskwright.evaluation.answers import SampleScores, score_samples
from maskwright.evaluation.figures import Measure
from maskwright.inference.precision import Compile, Computing
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.eval.embeddings import EmbeddingOptions, evaluate_embeddings
from maskwright.runs.eval.glue import DEFAULT_OUT, GlueOptions, evaluate_glue
from maskwright.runs.eval.glue_report import GlueReport
from maskwright.runs.eval.report import ItemScores, Report, build_report
from maskwright.runs.eval.retrieval import RetrievalOptions, evaluate_retrieval
from maskwright.runs.eval.suites import evaluate_bound, evaluate_cloze, evaluate_likelihood, evaluate_pairs, open_model
from maskwright.runs.given import GivenModel, keep_model, name_sources
from maskwright.runs.inputs import pack_documents
from maskwright.runs.texts import Say, read_texts
from maskwright.sections.data import SourceLike, build_sources
from maskwright.suggestions import checks_arguments, refuse_below, suggest
from maskwright.terminal import CleanConsole
from maskwright.training.held_out import Evaluation

_ROW_LENGTH = 512
_ROWS_PER_BATCH = 16


_SUITES_OF_OPTION = {
    "max_length": ("mlm", "diffusion"),
    "samples": ("diffusion",),
    "word_l2r": ("pll", "minimal-pairs"),
    **dict.fromkeys(
        ("precision", "compile"), ("pll", "diffusion", "minimal-pairs", "cloze", "embeddings", "retrieval")
    ),
    **dict.fromkeys(("train", "neighbors"), ("embeddings",)),
    "pooling": ("embeddings", "retrieval"),
    **dict.fromkeys(("split", "rerank", "rerank_depth"), ("retrieval",)),
    **dict.fromkeys(("seeds", "tasks", "limit", "epochs", "learning_rate", "out", "settings"), ("glue",)),
}
_SUITES_OF_TEXTS = ("mlm", "pll", "diffusion")
SUITES = ("mlm", "pll", "diffusion", "minimal-pairs", "cloze", "embeddings", "retrieval", "glue")


@checks_arguments
def evaluate(
    model: GivenModel,
    suite: str,
    sources: Any,
    *,
    against: GivenModel | None = None,
    word_l2r: bool = False,
    max_length: int | None = None,
    samples: int | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
    train: Any = None,
    neighbors: int | None = None,
    pooling: str | None = None,
    split: str | None = None,
    rerank: str | Path | None = None,
    rerank_depth: int | None = None,
    seeds: int | None = None,
    tasks: str | Sequence[str] | None = None,
    limit: int | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    out: str | Path | None = None,
    settings: Settings = (),
    tokenizer: Any = None,
    against_tokenizer: Any = None,
    console: Console | None = None,
) -> Report | GlueReport:
    """Measure a model, with a 95% interval for every figure, and compare it with another by a paired test.

    `suite` is mlm, pll, diffusion, minimal-pairs, cloze, embeddings, retrieval or glue. `sources` are files, or records
    in memory (dictionaries, a data frame, a dataset) with the columns that the files have; for glue and retrieval a
    folder. Models in memory need their tokenizers. `precision` is fp32 unless it is given, so that figures compare.
    What cannot be read is said by an `InputWarning`, glue's progress goes to `console`.
    """
    given = {name: value for name, value in locals().items() if name in _SUITES_OF_OPTION}
    if suite not in SUITES:
        raise InputError(f"no suite '{suite}'{suggest(suite, SUITES)}")
    for option, suites in _SUITES_OF_OPTION.items():
        if suite not in suites and not any(given[option] is unset for unset in (None, False, ())):
            raise InputError(f"--{option.replace('_', '-')} is for {' and '.join(suites)}, not {suite}; leave it out")
    refuse_below(1, neighbors=neighbors, seeds=seeds, rerank_depth=rerank_depth)
    if suite == "glue" and not isinstance(sources, str | Path):
        raise InputError(f"glue reads the folder of its files, not a {type(sources).__name__}; give the folder")
    with tempfile.TemporaryDirectory() as place:
        # GLUE's runs go on from one call to the next, so its models must stay where they were.
        parent = Path(out or DEFAULT_OUT) / "models" if suite == "glue" else Path(place)
        pairs = [(model, tokenizer), *([] if against is None else [(against, against_tokenizer)])]
        named = [keep_model(one, its_tokenizer, parent) for one, its_tokenizer in pairs]
        places = [one.place for one in named]
        report: Report | GlueReport
        if suite == "glue":
            report = _evaluate_glue(places, Path(sources), given, console or CleanConsole(stderr=True))
        else:
            if train is not None:
                given["train"] = _list_files(suite, name_sources(train, Path(place)))[0]
            read = name_sources(sources, Path(place), are_texts=suite in _SUITES_OF_TEXTS)
            report = _evaluate(suite, places, read, given)
    return replace(report, models=tuple(one.name for one in named))


def _evaluate_glue(models: list[str], folder: Path, given: Mapping[str, Any], console: Console) -> GlueReport:
    tasks = given["tasks"]
    names = [name.strip() for name in tasks.split(",") if name.strip()] if isinstance(tasks, str) else tasks
    options = GlueOptions(
        out=None if given["out"] is None else Path(given["out"]),
        tasks=names,
        settings=list_settings(given["settings"]),
        **{name: given[name] for name in ("seeds", "limit", "epochs", "learning_rate")},
    )
    return evaluate_glue(models, folder, options, console)


def _evaluate(suite: str, models: list[str], sources: list[SourceLike], given: Mapping[str, Any]) -> Report:
    def warn(text: str) -> None:
        warnings.warn(text, InputWarning, stacklevel=2)

    computing = Computing(given["precision"], given["compile"])
    if suite == "mlm":
        return evaluate_masked(models, sources, given["max_length"], warn)
    if suite == "pll":
        return evaluate_likelihood(models, sources, given["word_l2r"], warn, computing)
    if suite == "diffusion":
        return evaluate_bound(models, sources, given["samples"], given["max_length"], warn, computing)
    files = _list_files(suite, sources)
    if suite == "minimal-pairs":
        return evaluate_pairs(models, files, given["word_l2r"], computing)
    if suite == "cloze":
        return evaluate_cloze(models, files, computing)
    if suite == "retrieval":
        return evaluate_retrieval(models, files, _read_retrieval_options(given, computing))
    options = EmbeddingOptions(given["train"], given["neighbors"], given["pooling"], computing)
    return evaluate_embeddings(models, files, options)


def _read_retrieval_options(given: Mapping[str, Any], computing: Computing) -> RetrievalOptions:
    rerank = None if given["rerank"] is None else str(given["rerank"])
    return RetrievalOptions(given["split"], given["pooling"], rerank, given["rerank_depth"], computing)


def _list_files(suite: str, sources: Sequence[SourceLike]) -> list[str]:
    files = [str(source) for source in sources if isinstance(source, str | Path)]
    if len(files) < len(sources):
        raise InputError(f"{suite} reads files as they are, not sources with options; give their paths")
    return files


def evaluate_texts(name: str, sources: Sequence[str], max_length: int | None, warn: Say) -> dict[str, float]:
    """The figures of a model under fixed masks on 15% of single tokens, or on next tokens for a causal one."""
    return dict(evaluate_masked([name], sources, max_length, warn).totals)


def evaluate_masked(models: Sequence[str], sources: Sequence[SourceLike], max_length: int | None, warn: Say) -> Report:
    """`mlm`: loss, accuracy and perplexity; two models are asked for the same tokens, so they share a tokenizer."""
    loaded = [open_model(name) for name in models]
    row_length = _choose_row_length(models, [model for model, _ in loaded], max_length)
    (model, tokenizer), other = loaded[0], loaded[-1]
    if other[1].backend.to_str() != tokenizer.backend.to_str():
        raise InputError(
            f"{models[0]} and {models[-1]} have different tokenizers, so they cannot be asked for the same tokens;"
            " compare them by pll or minimal-pairs"
        )
    if other[0].evaluates_causally != model.evaluates_causally:
        raise InputError(
            f"of {models[0]} and {models[-1]} one fills masked tokens and one continues text, and their losses do not"
            " compare; compare them by minimal-pairs"
        )
    texts = [text for source in build_sources(list(sources)) for text in read_texts(source, warn)]
    loader = pack_documents(
        texts, tokenizer, warn, row_length=row_length, rows_per_batch=_ROWS_PER_BATCH, shuffle=False
    )
    scores = [score_samples(one, loader.epoch(0)) for one, _ in loaded]
    items = [_measure(one, scored) for (one, _), scored in zip(loaded, scores, strict=True)]
    totals = {**_compute_totals(model, scores[0]), "documents": len(texts)}
    asked = "next tokens" if model.evaluates_causally else "fixed masks on 15% of single tokens"
    return build_report("mlm", models, items, score=asked, items="samples", groups={}, totals=totals)


def _choose_row_length(names: Sequence[str], models: Sequence[MaskedLanguageModel], max_length: int | None) -> int:
    limits = [find_max_length(model.encoder) for model in models]
    if max_length is None:
        return min(_ROW_LENGTH, *(limit or _ROW_LENGTH for limit in limits))
    for name, limit in zip(names, limits, strict=True):
        if limit is not None and max_length > limit:
            raise InputError(f"the row length is {max_length}, {name} takes {limit} tokens; lower --max-length")
    return max_length


def _measure(model: MaskedLanguageModel, scores: SampleScores) -> ItemScores:
    loss = Measure("loss", scores.loss_sums, scores.num_questions)
    accuracy = Measure(model.accuracy_name, scores.num_correct, scores.num_questions)
    perplexity = Measure("perplexity", -scores.loss_sums, scores.num_questions, is_perplexity=True)
    return ItemScores([loss, accuracy, perplexity], [None] * len(scores.loss_sums))


def _compute_totals(model: MaskedLanguageModel, scores: SampleScores) -> dict[str, float]:
    count = float(scores.num_questions.sum())
    metrics = {"loss": scores.loss_sums.sum() / count, model.accuracy_name: scores.num_correct.sum() / count}
    evaluation = Evaluation({name: float(value) for name, value in metrics.items()}, int(count))
    return {**evaluation.metrics, "perplexity": evaluation.perplexity, "questions": evaluation.num_masked}
