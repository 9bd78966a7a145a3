"""A Wikipedia dump to plain text, one paragraph per line, on several cores."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from maskwright.errors import InputError
from maskwright.ownership import owning
from maskwright.storage import naming_if_full
from maskwright.suggestions import OVERWRITE
from maskwright.terminal import say
from maskwright.text.wiki.dump import WikiDump, WikiPage
from maskwright.text.wiki.paragraphs import hidden_prefixes
from maskwright.text.wiki.pool import CleanedPage, Failure, wiki_pool

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
            say(self._console, f"{share:.0%}  {status}")

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


PAGE_TIME_LIMIT_S = 5.0
_PENDING_PAGES_PER_WORKER = 32
_MAX_PENDING_CHARS = 1 << 25
_ARTICLES = "0"
_WIKITEXT = "wikitext"
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_CHAR = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(f"[{_UNSPACED}]|[^\\s\u3000-\u303f\uff00-\uffef{_UNSPACED}]+")


def preprocess_wiki_dump(
    input_file: str | Path,
    output_file: str | Path,
    min_length: int = 10,
    max_length: int = 1000,
    *,
    workers: int | None = None,
    page_time_limit_s: float = PAGE_TIME_LIMIT_S,
    overwrite: bool = False,
    console: Console | None = None,
) -> WikiReport:
    """Write the paragraphs of a dump's articles that have `min_length` to `max_length` words, one per line.

    The output does not depend on the number of workers (default: all cores), but for pages that reach the time limit.
    Progress goes to `console`. Errors: InputError for a file that is no dump, is cut off or malformed; the output is
    then as it was.
    """
    source, target = Path(input_file), Path(output_file)
    _check_settings(min_length, max_length, workers, page_time_limit_s)
    _check_parser()
    with owning(target, instead="output"):
        _check_target(source, target, overwrite)
        return _write_paragraphs(source, target, min_length, max_length, workers, page_time_limit_s, console)


def _write_paragraphs(
    source: Path,
    target: Path,
    min_length: int,
    max_length: int,
    workers: int | None,
    page_time_limit_s: float,
    console: Console | None,
) -> WikiReport:
    dump, report = WikiDump(source), WikiReport()
    cleaned_pages = _clean_pages(dump, report, workers or _num_cores(), page_time_limit_s)
    with (
        _whole_file(target) as file,
        wiki_progress(dump, report, console) as progress,
        closing(cleaned_pages),
    ):
        for title, cleaned in cleaned_pages:
            file.writelines(f"{line}\n" for line in _select(title, cleaned, min_length, max_length, report))
            progress.update()
    return report


def count_words(text: str) -> int:
    """Words between spaces; a Chinese or Japanese character counts as one, because no spaces part them."""
    return len(_WORD.findall(text)) if _UNSPACED_CHAR.search(text) else len(text.split())


def _clean_pages(
    dump: WikiDump, report: WikiReport, num_workers: int, page_time_limit_s: float
) -> Generator[tuple[str, CleanedPage], None, None]:
    """Articles in the dump's order, with a bounded number of them on their way."""
    articles = _articles(dump, report)
    first = next(articles, None)
    if first is None:
        return
    pending: deque[tuple[WikiPage, Future[CleanedPage]]] = deque()
    num_chars = 0
    with wiki_pool(num_workers, hidden_prefixes(dump.namespaces), page_time_limit_s) as (pool, threads):
        for page in chain([first], articles):
            pending.append((page, threads.submit(pool.clean, page.text)))
            num_chars += len(page.text)
            while pending and (
                pending[0][1].done()
                or len(pending) > num_workers * _PENDING_PAGES_PER_WORKER
                or num_chars > _MAX_PENDING_CHARS
            ):
                done, future = pending.popleft()
                yield done.title, future.result()
                num_chars -= len(done.text)
        for done, future in pending:
            yield done.title, future.result()


def _articles(dump: WikiDump, report: WikiReport) -> Iterator[WikiPage]:
    for page in dump.pages():
        report.pages += 1
        if page.namespace != _ARTICLES:
            report.other_namespace += 1
        elif page.is_redirect:
            report.redirects += 1
        elif page.model != _WIKITEXT:
            report.other_model += 1
        elif page.is_oversized:
            report.oversized += 1
            report.give_up(page.title)
        elif not page.text.strip():
            report.empty += 1
        else:
            yield page


def _select(title: str, cleaned: CleanedPage, min_length: int, max_length: int, report: WikiReport) -> list[str]:
    """The paragraphs of fitting length, everything counted."""
    if cleaned.failure is not None:
        report.timed_out += cleaned.failure is Failure.TIMED_OUT
        report.crashed += cleaned.failure is Failure.CRASHED
        report.give_up(title)
        return []
    selected = []
    for paragraph in cleaned.paragraphs:
        num_words = count_words(paragraph)
        if num_words < min_length:
            report.too_short += 1
        elif num_words > max_length:
            report.too_long += 1
        else:
            selected.append(paragraph)
            report.words += num_words
    report.paragraphs += len(selected)
    report.kept += bool(selected)
    report.empty += not cleaned.paragraphs
    report.unfit += bool(cleaned.paragraphs) and not selected
    return selected


def _check_settings(min_length: int, max_length: int, workers: int | None, page_time_limit_s: float) -> None:
    if not 0 <= min_length <= max_length:
        raise InputError(f"min_length {min_length} and max_length {max_length}: expected 0 <= min_length <= max_length")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected at least 1")
    if not 0 < page_time_limit_s < float("inf"):
        raise InputError(f"page_time_limit_s is {page_time_limit_s}; expected a number of seconds above 0")


def _check_target(source: Path, target: Path, overwrite: bool) -> None:
    if target.is_dir():
        raise InputError(f"{target} is a folder; give the name of the text file to write")
    if not target.exists():
        return
    if source.exists() and target.samefile(source):
        raise InputError(f"{target} is the dump itself; give another name for the output")
    if not overwrite:
        raise InputError(f"{target} exists; choose another name, or add {OVERWRITE}")


def _check_parser() -> None:
    if find_spec("mwparserfromhell") is None:
        raise InputError("wiki dumps need mwparserfromhell: pip install 'maskwright[wiki]'")


@contextmanager
def _whole_file(path: Path) -> Iterator[TextIO]:
    """A file to write that takes the place of `path` only when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming_if_full(path, temporary), temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
