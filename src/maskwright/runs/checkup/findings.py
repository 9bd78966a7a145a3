"""What a check-up finds, as data: one finding to a line, each with a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from maskwright.runs.checkup.example import MaskedExample

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
    """All findings, in the order in which a run meets their causes."""

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
