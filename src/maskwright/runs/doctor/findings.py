"""The findings of `maskwright doctor`, one per line, each with a verdict, and their output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.text import Text

from maskwright.data.loader import PackedLoader
from maskwright.inference.visualize import split_text
from maskwright.runs.model import TrainedModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

_READABLE_LENGTH = 24
"""Tokens of a sentence that is read at a glance."""


@dataclass(frozen=True)
class MaskedExample:
    """One piece of text per token; the space before a word is part of its piece."""

    original: list[str]
    seen: list[str]
    selected: list[bool]
    """The tokens to predict: masked, replaced by a random token, or unchanged."""


def build_example(model: TrainedModel, tokenizer: Tokenizer, held_out: PackedLoader, seed: int) -> MaskedExample:
    """The sample of the most readable length under the masking of a run's first epoch; the model is on the CPU."""
    sample = int(np.argmin(np.abs(held_out.samples.lengths - _READABLE_LENGTH)))
    batch = held_out.build_batch([[sample]])
    corrupted = model.corrupt(batch, seed, 0)
    ids = batch.input_ids[0]
    is_shown = ~batch.is_padding[0] & (ids != tokenizer.cls_token_id) & (ids != tokenizer.sep_token_id)
    return MaskedExample(
        original=split_text(tokenizer, ids[is_shown].tolist()),
        seen=split_text(tokenizer, corrupted.batch.input_ids[0][is_shown].tolist()),
        selected=corrupted.selected[0][is_shown].tolist(),
    )


Verdict = Literal["OK", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    area: str
    verdict: Verdict
    text: str
    advice: str = ""
    """What to do, where the verdict is not OK."""

    @classmethod
    def judge(cls, area: str, text: str, advice: str | None, verdict: Verdict = "warning") -> Finding:
        """OK without advice, else `verdict`."""
        return cls(area, "OK", text) if advice is None else cls(area, verdict, text, advice)

    @classmethod
    def from_error(cls, area: str, error: Exception) -> Finding:
        """A problem; our errors say what was found and then, after a semicolon, what to do."""
        message = " ".join(str(error).split())
        found, _, advice = message.rpartition("; ")
        return cls(area, "problem", found, advice) if found else cls(area, "problem", message)


@dataclass
class CheckUp:
    """All findings, in the order in which a run would hit them."""

    findings: list[Finding] = field(default_factory=list)
    example: MaskedExample | None = None

    def count(self, verdict: Verdict) -> int:
        return sum(finding.verdict == verdict for finding in self.findings)

    @property
    def summary(self) -> str:
        num_problems, num_warnings = self.count("problem"), self.count("warning")
        if num_problems:
            return f"{num_problems} problem{'s' if num_problems > 1 else ''}"
        return f"OK with {num_warnings} warning{'s' if num_warnings > 1 else ''}" if num_warnings else "OK"

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        if self.count("problem"):
            return "problem"
        return "warning" if self.count("warning") else "OK"

    @property
    def exit_code(self) -> int:
        return 2 if self.verdict == "problem" else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "verdict": self.verdict,
            "num_problems": self.count("problem"),
            "num_warnings": self.count("warning"),
            "findings": [asdict(finding) for finding in self.findings],
            "example": None if self.example is None else asdict(self.example),
        }


_BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def format_bytes(number: float) -> str:
    for unit, size in _BYTE_UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} bytes"


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
