"""`maskwright fill`"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from maskwright.terminal import echo


def fill(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    text: Annotated[str, typer.Argument(help="Text with [MASK] or <mask> where a word is missing.")],
    top_k: Annotated[int, typer.Option(help="Candidates for each masked place.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fill the masked words of a text, with probabilities.

    Example:

        maskwright fill runs/quickstart "The for [MASK] is used to iterate over a sequence."
    """
    from dataclasses import asdict

    from maskwright.runs.commands import fill as run

    answers = run(model, text, top_k)
    if as_json:
        echo(json.dumps([[asdict(candidate) for candidate in candidates] for candidates in answers]))
        return
    for candidates in answers:
        for candidate in candidates:
            echo(f"{candidate.score:7.2%}  {candidate.token_str:<16}  {candidate.sequence}")
        if candidates is not answers[-1]:
            echo()
