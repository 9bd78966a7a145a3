"""A check-up in a terminal: a line for each finding, the masked sentence, and the verdict on the whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from maskwright.runs.checkup.example import MaskedExample
from maskwright.runs.checkup.findings import CheckUp, Finding

_STYLES = {"OK": "green", "warning": "bold yellow", "problem": "bold red"}


def print_checkup(checkup: CheckUp, console: Console) -> None:
    """Lines are never wrapped, so that each finding stays one."""
    for finding in checkup.findings:
        console.print(_format_finding(finding), soft_wrap=True)
    if checkup.example is not None:
        for line in _format_example(checkup.example):
            console.print(line, soft_wrap=True)
    console.print(checkup.summary, style=_STYLES[checkup.verdict], highlight=False)


def _format_finding(finding: Finding) -> Text:
    advice = f"; {finding.advice}" if finding.advice else ""
    return Text.assemble(
        (f"{finding.verdict:<8}", _STYLES[finding.verdict]), (f"{finding.area:<10}", "bold"), finding.text, advice
    )


def _format_example(example: MaskedExample) -> list[Text]:
    texts: dict[str, tuple[Sequence[str], str]] = {
        "text": (example.original, "bold green"),
        "the model sees": (example.seen, "bold yellow"),
    }
    return [
        Text.assemble((f"{title:<18}", "dim"), *_colour(pieces, example.selected, style))
        for title, (pieces, style) in texts.items()
    ]


def _colour(pieces: Sequence[str], selected: Sequence[bool], style: str) -> list[tuple[str, str]]:
    return [
        (piece if place else piece.lstrip(), style if selected[place] else "") for place, piece in enumerate(pieces)
    ]
