"""`maskwright eval`"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.errors import InputError
from maskwright.suggestions import suggest
from maskwright.terminal import CleanConsole, echo

if TYPE_CHECKING:
    from maskwright.runs.evaluation.glue_report import GlueReport
    from maskwright.runs.evaluation.report import Report

_SUITES = ("mlm", "pll", "minimal-pairs", "cloze", "embeddings", "glue")
_SUITES_OF_OPTION = {
    "--max-length": ("mlm",),
    "--word-l2r": ("pll", "minimal-pairs"),
    **dict.fromkeys(("--train", "--neighbors", "--pooling"), ("embeddings",)),
    **dict.fromkeys(("--seeds", "--tasks", "--limit", "--epochs", "--learning-rate", "--out"), ("glue",)),
}


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    suite: Annotated[str, typer.Argument(help="What to measure: mlm, pll, minimal-pairs, cloze, embeddings or glue.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Texts for mlm and pll; .jsonl for minimal-pairs and cloze; files with labels for embeddings; GLUE's"
            " folder, then KEY=VALUE settings of runs."
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="Another model, compared on the same items by a paired test.")
    ] = None,
    word_l2r: Annotated[
        bool, typer.Option("--word-l2r", help="pll, minimal-pairs: also mask what follows a token in its word.")
    ] = False,
    max_length: Annotated[int | None, typer.Option(help="mlm: row length; unset: up to 512.")] = None,
    train: Annotated[
        str | None, typer.Option(help="embeddings: labelled texts to find neighbors in; unset: leave one out.")
    ] = None,
    neighbors: Annotated[int | None, typer.Option(min=1, help="embeddings: neighbors that vote; unset: 10.")] = None,
    pooling: Annotated[str | None, typer.Option(help="embeddings: mean or cls; unset: the model's own.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="glue: runs of each task; unset: 3.")] = None,
    tasks: Annotated[str | None, typer.Option(help="glue: such as CoLA,RTE; unset: all that are there.")] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="glue: train on so many first examples.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="glue: passes over the examples; unset: 3.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="glue: peak learning rate; unset: suits the encoder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="glue: the folder of its runs; unset: runs/glue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model, with a 95% interval for every figure.

    mlm: loss, accuracy and perplexity under fixed masks on 15% of single tokens, the same for every model;
    a causal model (training.mode=clm) answers every next token.

    pll: pseudo-log-likelihood and pseudo-perplexity of texts; of a causal model its log-likelihood.

    minimal-pairs: how often the acceptable sentence of two is the more probable one, on files like BLiMP's.

    cloze: how often a single-token answer is among the first 1, 5 and 10, on files like LAMA's.

    embeddings: correlation of cosines with the scores of pairs, and classes by nearest neighbors.

    glue: fine-tunes on each task with several seeds; finished runs are not repeated.

    Examples:

        maskwright eval runs/mine mlm held-out.txt

        maskwright eval runs/mine minimal-pairs blimp/ --against runs/other --json

        maskwright eval runs/mine embeddings sts-dev.csv banking77.csv --against runs/other

        maskwright eval runs/mine glue glue_data/ --tasks CoLA,RTE --seeds 5
    """
    if suite not in _SUITES:
        raise InputError(f"no suite '{suite}'{suggest(suite, _SUITES)}")
    for option, suites in _SUITES_OF_OPTION.items():
        if suite not in suites and context.params[option[2:].replace("-", "_")] not in (None, False):
            raise InputError(f"{option} is for {' and '.join(suites)}, not {suite}; leave it out")
    models = [model] if against is None else [model, against]
    if suite == "glue":
        glue_report = _evaluate_glue(models, sources, context.params)
        from maskwright.runs.evaluation.glue_report import format_glue

        echo(json.dumps(glue_report.to_json()) if as_json else format_glue(glue_report))
        return
    report = _evaluate(suite, models, sources, context.params)
    from maskwright.runs.evaluation.view import format_report

    echo(json.dumps(report.to_json()) if as_json else format_report(report))


def _evaluate_glue(models: list[str], sources: list[str], params: Mapping[str, Any]) -> GlueReport:

    from maskwright.runs.evaluation.glue import GlueOptions, evaluate_glue

    names = ("out", "seeds", "limit", "epochs", "learning_rate")
    tasks = None if params["tasks"] is None else [name.strip() for name in params["tasks"].split(",") if name.strip()]
    options = GlueOptions(**{name: params[name] for name in names}, tasks=tasks, settings=sources[1:])
    return evaluate_glue(models, Path(sources[0]), options, CleanConsole(stderr=True))


def _evaluate(suite: str, models: list[str], sources: list[str], params: Mapping[str, Any]) -> Report:
    from maskwright.runs.evaluate import evaluate_masked
    from maskwright.runs.evaluation.embeddings import EmbeddingOptions, evaluate_embeddings
    from maskwright.runs.evaluation.suites import evaluate_cloze, evaluate_likelihood, evaluate_pairs

    def warn(text: str) -> None:
        echo(f"warning: {text}", err=True)

    match suite:
        case "pll":
            return evaluate_likelihood(models, sources, params["word_l2r"], warn)
        case "minimal-pairs":
            return evaluate_pairs(models, sources, params["word_l2r"])
        case "cloze":
            return evaluate_cloze(models, sources)
        case "embeddings":
            options = EmbeddingOptions(params["train"], params["neighbors"], params["pooling"])
            return evaluate_embeddings(models, sources, options)
    return evaluate_masked(models, sources, params["max_length"], warn)
