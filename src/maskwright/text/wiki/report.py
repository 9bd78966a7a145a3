"""What became of the pages and paragraphs of a wiki dump, and the progress shown meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from maskwright.text.wiki.dump import WikiDump

_PLAIN_INTERVAL_S = 10.0
_BAR_INTERVAL_S = 0.2
_MAX_TITLES = 20


@dataclass
class WikiReport:
    """Counts. `pages` is the sum of `kept` and of the reasons in `dropped`."""

    pages: int = 0
    kept: int = 0
    """Pages of which at least one paragraph was written."""
    redirects: int = 0
    other_namespace: int = 0
    other_model: int = 0
    oversized: int = 0
    timed_out: int = 0
    crashed: int = 0
    empty: int = 0
    """Pages without any text outside markup."""
    unfit: int = 0
    """Pages all of whose paragraphs were too short or too long."""
    paragraphs: int = 0
    too_short: int = 0
    too_long: int = 0
    words: int = 0
    elapsed_s: float = 0.0
    given_up: list[str] = field(default_factory=list)
    """The first titles among the timed out and crashed pages."""

    @property
    def dropped(self) -> dict[str, int]:
        """Pages without a written paragraph, by reason."""
        return {
            "redirect": self.redirects,
            "other namespace": self.other_namespace,
            "other content model": self.other_model,
            "larger than any real page": self.oversized,
            "timed out": self.timed_out,
            "crashed": self.crashed,
            "empty": self.empty,
            "no paragraph of fitting length": self.unfit,
        }

    @property
    def pages_per_s(self) -> float:
        return self.pages / self.elapsed_s if self.elapsed_s else 0.0

    def give_up(self, title: str) -> None:
        if len(self.given_up) < _MAX_TITLES:
            self.given_up.append(title)

    def lines(self) -> list[str]:
        """The report for people."""
        dropped = self.dropped
        lines = [
            f"pages       {self.pages:>12,}  in {self.elapsed_s:.1f} s, {self.pages_per_s:,.0f} pages/s",
            f"  kept      {self.kept:>12,}",
            f"  dropped   {sum(dropped.values()):>12,}",
            *(f"    {count:>14,}  {reason}" for reason, count in dropped.items() if count),
            f"paragraphs  {self.paragraphs:>12,}  written, {self.words:,} words",
            f"  too short {self.too_short:>12,}",
            f"  too long  {self.too_long:>12,}",
        ]
        if self.given_up:
            lines.append(f"given up: {', '.join(self.given_up)}")
        return lines


class WikiProgress:
    """A bar over the bytes of the dump in a terminal, a line every ten seconds elsewhere, nothing without a console."""

    def __init__(self, dump: WikiDump, report: WikiReport, console: Console | None) -> None:
        self._dump, self._report, self._console = dump, report, console
        self._started_s = self._shown_s = time.monotonic()
        self._bar: Progress | None = None
        if console is not None and console.is_terminal:
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[status]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("wiki", total=_size(dump.path), status="starting")
            self._bar.start()

    def update(self) -> None:
        """Called for every page; shows something only now and then."""
        now_s = time.monotonic()
        self._report.elapsed_s = now_s - self._started_s
        interval_s = _PLAIN_INTERVAL_S if self._bar is None else _BAR_INTERVAL_S
        if self._console is None or now_s - self._shown_s < interval_s:
            return
        self._shown_s = now_s
        status = f"{self._report.pages:,} pages  {self._report.pages_per_s:,.0f} pages/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=self._dump.num_bytes, status=status)
        else:
            share = self._dump.num_bytes / max(1, _size(self._dump.path))
            self._console.print(f"{share:.0%}  {status}", highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        self._report.elapsed_s = time.monotonic() - self._started_s
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def wiki_progress(dump: WikiDump, report: WikiReport, console: Console | None) -> Iterator[WikiProgress]:
    progress = WikiProgress(dump, report, console)
    try:
        yield progress
    finally:
        progress.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
