"""`maskwright eval`"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from maskwright.errors import InputError
from maskwright.suggestions import suggest

_SUITES = ("mlm",)


def evaluate(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    suite: Annotated[str, typer.Argument(help="What to measure: mlm.")],
    sources: Annotated[list[str], typer.Argument(help="Held-out texts: files, folders, globs or builtin:python.")],
    max_length: Annotated[int | None, typer.Option(help="Row length; unset: up to 512.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Loss, perplexity and accuracy on texts.

    Masked models answer fixed masks on 15% of single tokens, however they were trained, so that models compare;
    a causal model (training.mode=clm) answers every next token.

    Example:

        maskwright eval runs/mine mlm held-out.txt
    """
    from maskwright.runs.evaluate import evaluate_texts

    if suite not in _SUITES:
        raise InputError(f"no suite '{suite}'{suggest(suite, _SUITES)}")
    figures = evaluate_texts(model, sources, max_length, lambda text: typer.echo(f"warning: {text}", err=True))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        typer.echo(f"{name:>14}  {value:,.4f}" if isinstance(value, float) else f"{name:>14}  {value:,}")
