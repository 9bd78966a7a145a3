"""`maskwright eval`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from maskwright.errors import InputError
from maskwright.suggestions import suggest

if TYPE_CHECKING:
    from maskwright.runs.evaluation.report import Report

_SUITES = ("mlm", "pll", "minimal-pairs", "cloze")
_SUITES_OF_OPTION = {"--max-length": ("mlm",), "--word-l2r": ("pll", "minimal-pairs")}


def evaluate(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    suite: Annotated[str, typer.Argument(help="What to measure: mlm, pll, minimal-pairs or cloze.")],
    sources: Annotated[
        list[str],
        typer.Argument(help="Held-out texts for mlm and pll, .jsonl files for the others: files, folders or globs."),
    ],
    against: Annotated[
        str | None, typer.Option(help="Another model, compared on the same items by a paired test.")
    ] = None,
    word_l2r: Annotated[
        bool, typer.Option("--word-l2r", help="pll, minimal-pairs: also mask what follows a token in its word.")
    ] = False,
    max_length: Annotated[int | None, typer.Option(help="mlm: row length; unset: up to 512.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model, with a 95% interval for every figure.

    mlm: loss, accuracy and perplexity under fixed masks on 15% of single tokens, the same for every model;
    a causal model (training.mode=clm) answers every next token.

    pll: pseudo-log-likelihood and pseudo-perplexity of texts; of a causal model its log-likelihood.

    minimal-pairs: how often the acceptable sentence of two is the more probable one, on files like BLiMP's.

    cloze: how often a single-token answer is among the first 1, 5 and 10, on files like LAMA's.

    Examples:

        maskwright eval runs/mine mlm held-out.txt

        maskwright eval runs/mine minimal-pairs blimp/ --against runs/other --json
    """
    if suite not in _SUITES:
        raise InputError(f"no suite '{suite}'{suggest(suite, _SUITES)}")
    for option, is_given in (("--max-length", max_length is not None), ("--word-l2r", word_l2r)):
        if is_given and suite not in _SUITES_OF_OPTION[option]:
            raise InputError(f"{option} is for {' and '.join(_SUITES_OF_OPTION[option])}, not {suite}; leave it out")
    models = [model] if against is None else [model, against]
    report = _evaluate(suite, models, sources, word_l2r, max_length)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
        return
    from maskwright.runs.evaluation.view import format_report

    typer.echo(format_report(report))


def _evaluate(suite: str, models: list[str], sources: list[str], word_l2r: bool, max_length: int | None) -> Report:
    from maskwright.runs.evaluate import evaluate_masked
    from maskwright.runs.evaluation.suites import evaluate_cloze, evaluate_likelihood, evaluate_pairs

    def warn(text: str) -> None:
        typer.echo(f"warning: {text}", err=True)

    match suite:
        case "pll":
            return evaluate_likelihood(models, sources, word_l2r, warn)
        case "minimal-pairs":
            return evaluate_pairs(models, sources, word_l2r)
        case "cloze":
            return evaluate_cloze(models, sources)
    return evaluate_masked(models, sources, max_length, warn)
