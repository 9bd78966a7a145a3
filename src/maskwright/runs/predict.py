"""`maskwright predict` and `maskwright.predict`: texts or questions in, answers as a list, a file or a stream."""

from __future__ import annotations

import hashlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.answers import MOST_SHOWN, Answers
from maskwright.inference.kept_answers import KeptAnswers, keep_answers
from maskwright.inference.kinds import outline_kind, resolve_kind
from maskwright.inference.outputs import VECTORS, AnswerColumns, check_output
from maskwright.inference.pipeline import Pipeline, describe_gaps, pipeline
from maskwright.inference.precision import Compile
from maskwright.models.files.model_folder import resolve_folder
from maskwright.ownership import owning
from maskwright.runs.given import GivenModel, name_module
from maskwright.runs.predict_on_ray import PredictorSettings, RayPredictors
from maskwright.runs.progress import Reading, show_progress
from maskwright.runs.ray_cluster import names_ray
from maskwright.runs.rows import AskedRow, AskedRows, RowOptions, describe_files, find_rows, read_keep_columns
from maskwright.suggestions import OUT, checks_arguments
from maskwright.terminal import CleanConsole, say
from maskwright.text.corpus import ReadingReport

_VECTOR_KIND = "embed"
_HASH_BYTES = 6
_CPU_PART = (2_500, 1 << 18)
_GPU_PART = (100_000, 1 << 24)
"""Rows and characters of a part, half a minute of work or less: as much as a killed command has to do again."""


@dataclass(frozen=True)
class _Output:
    path: Path
    overwrite: bool
    has_vectors: bool
    keeps_columns: bool

    def check(self) -> None:
        check_output(self.path, self.overwrite, self.has_vectors, self.keeps_columns)

    def check_vectors(self, example: Mapping[str, Any]) -> None:
        """Whether a model that is loaded gives what the file can hold."""
        check_output(self.path, self.overwrite, VECTORS in example, self.keeps_columns)


@checks_arguments
def predict(
    kind: str,
    model: GivenModel,
    texts: Any,
    *,
    top_k: int | None = None,
    target: Sequence[str] | None = None,
    pooling: str | None = None,
    normalize: bool = False,
    role: str | None = None,
    aggregation: str | None = None,
    label: Sequence[str] | None = None,
    hypothesis: str | None = None,
    multi_label: bool = False,
    question: str | None = None,
    max_answer_length: int | None = None,
    max_question_length: int | None = None,
    doc_stride: int | None = None,
    handle_impossible_answer: bool = False,
    max_length: int | None = None,
    column: str | None = None,
    second_column: str | None = None,
    id_column: str | None = None,
    keep_columns: bool | str | Sequence[str] = False,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
    tokenizer: Any = None,
    on: str | None = None,
    write: Callable[[dict[str, Any]], None] | None = None,
    console: Console | None = None,
) -> list[Any] | None:
    """Answers of a model to texts, as a list in their order.

    `texts` are a text, a source (a file, a folder, a dataset, "-" for standard input), or in memory a list of texts, of
    pairs or of questions with contexts, a data frame or a dataset. What has no text has the answer None. Answers go to
    the file `out`, or one by one to `write`, where one of these is given, and then None is returned. There each has its
    `row`, from 0, or the record's `id_column` (unset: `id`, if there is one), the texts, and of the record's other
    columns `keep_columns` (True: all). The same call goes on with the file `out` after a killed one. `on` is `ray` or
    `ray://HOST:PORT`: the nodes of a cluster answer, to a file. Progress goes to `console`.
    """
    keeps = read_keep_columns(keep_columns)
    output = None
    if out is not None:
        output = _Output(Path(out), overwrite, resolve_kind(kind) == _VECTOR_KIND, keeps != ())
        output.check()
    given = {
        "top_k": top_k,
        "targets": target,
        "pooling": pooling,
        "normalize": normalize or None,
        "role": role,
        "aggregation": aggregation,
        "labels": label,
        "hypothesis": hypothesis,
        "multi_label": multi_label or None,
        "max_answer_length": max_answer_length,
        "max_question_length": max_question_length,
        "doc_stride": doc_stride,
        "handle_impossible_answer": handle_impossible_answer or None,
        "max_length": max_length,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if on is not None:
        _check_can_share(on, model, tokenizer, output)
    model_name = _describe_model(model) if output is not None else ""
    predictor = (
        Pipeline(outline_kind(kind, str(model), **settings))  # the nodes have the weights
        if on is not None
        else pipeline(
            kind,
            model,
            tokenizer,
            device=device,
            batch_tokens=batch_tokens,
            precision=precision,
            compile=compile,
            **settings,
        )
    )
    if output is not None:
        output.check_vectors(predictor.kind.example)
    if predictor.precision is not None and predictor.precision.name != "fp32":
        (console or CleanConsole(stderr=True)).print(f"precision: {predictor.precision}", highlight=False)
    if predictor.compilation is not None and (compile is not None or _is_on_gpu(predictor)):
        (console or CleanConsole(stderr=True)).print(f"compile: {predictor.compilation}", highlight=False)
    report = ReadingReport(keeps_long_texts=True)
    options = RowOptions(column, second_column, question, id_column, keeps)
    asked = find_rows(predictor.kind, kind, texts, options, report)
    work = _Work(predictor, asked, report, console or CleanConsole(stderr=True))
    with closing(work):
        chosen = None if predictor.precision is None else predictor.precision.name
        if on is not None:
            chosen = work.share(
                on, str(model), PredictorSettings(kind, settings, device, batch_tokens, precision, compile)
            )
        if output is not None:
            job = {
                "kind": resolve_kind(kind),
                "model": model_name,
                "tokenizer": _hash_text(predictor.kind.tokenizer.backend.to_str()),
                **{name.replace("_", " "): value for name, value in {**settings, **asdict(options)}.items() if value},
                "precision": chosen,
                "kept columns": "all" if keeps is None else list(keeps),
            }
            work.write_file(output, job)
            return None
        if write is not None:
            work.hand_over(write)
            return None
        return work.collect()


class _Work:
    """Rows on their way through a model."""

    def __init__(
        self, predictor: Pipeline[Any, Any], asked: AskedRows, report: ReadingReport, console: Console
    ) -> None:
        self._predictor, self._asked, self._report, self._console = predictor, asked, report, console
        self._nodes: RayPredictors | None = None
        self._is_on_gpu = _is_on_gpu(predictor)
        self._share: float | None = None
        self._num_rows = self._num_gaps = 0

    def share(self, on: str, model: str, settings: PredictorSettings) -> str:
        """Have the nodes of a cluster answer; the precision that they compute in."""
        self._nodes = RayPredictors(on, model, settings, self._say)
        facts = self._nodes.find_facts(self._asked.must_answer)
        self._is_on_gpu = facts.is_on_gpu
        if facts.precision != "fp32":
            self._say(f"precision: {facts.described_precision}")
        return facts.precision

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()

    def collect(self) -> Answers:
        answers: list[Any] = []
        texts: list[str] = []
        for row, answer in self._answer():
            answers.append(answer)
            if len(texts) < MOST_SHOWN:
                described = self._predictor.kind.describe_input(row.item)
                texts.append("  |  ".join(str(text) for text in described.values()))
        self._warn(self._num_gaps, self._num_rows, "None")
        return Answers(answers, texts)

    def hand_over(self, write: Callable[[dict[str, Any]], None]) -> None:
        for row, answer in self._answer():
            write(self._record(row, answer))
        self._warn(self._num_gaps, self._num_rows, "null")

    def write_file(self, output: _Output, job: Mapping[str, Any]) -> None:
        kind, blank = self._predictor.kind, self._asked.blank
        columns = AnswerColumns(blank.labels, {**kind.describe_input(blank.item), **kind.example})
        with owning(output.path):
            output.check()  # another command may have written it since
            with keep_answers(
                output.path,
                columns,
                job=lambda: {**job, "source": self._asked.fingerprint()},
                can_repeat=self._asked.can_repeat,
                overwrite=output.overwrite,
                say=self._say,
            ) as kept:
                for row, answer in self._answer(kept):
                    kept.write(self._record(row, answer), is_missing=answer is None)
                num_rows, num_gaps = kept.finish()
        self._warn(num_gaps, num_rows, "null")

    def _record(self, row: AskedRow, answer: Any) -> dict[str, Any]:
        return {**row.labels, **self._predictor.kind.record(row.item, answer)}

    def _answer(self, kept: KeptAnswers | None = None) -> Iterator[tuple[AskedRow, Any]]:
        """Rows with their answers, None where there is nothing to answer, after those that are kept."""
        num_before = self._num_rows = 0 if kept is None else kept.num_records
        if num_before:
            self._say(f"going on after {num_before:,} answers that an earlier command kept")
        rows = islice(self._asked.rows, num_before, None)
        answers = self._answer_all(rows) if kept is None else self._answer_parts(rows, kept)
        if self._asked.source is None:
            return answers
        noun = self._predictor.kind.item_name
        return show_progress(answers, self._console, noun, self._read_progress, num_before)

    def _answer_parts(self, rows: Iterator[AskedRow], kept: KeptAnswers) -> Iterator[tuple[AskedRow, Any]]:
        """Each part is answered by itself, so that its answers do not depend on which one was the first."""
        size = _GPU_PART if self._is_on_gpu else _CPU_PART
        if self._nodes is not None:
            yield from self._answer_on_nodes(self._nodes, rows, kept, size)
            return
        first = next(rows, None)
        while first is not None:
            part = chain([first], rows)
            yield from self._answer_all(_take_part(part, *size))
            first = next(rows, None)
            if first is not None:
                kept.keep()

    def _answer_on_nodes(
        self, nodes: RayPredictors, rows: Iterator[AskedRow], kept: KeptAnswers, size: tuple[int, int]
    ) -> Iterator[tuple[AskedRow, Any]]:
        parts = iter(lambda: list(_take_part(rows, *size)), [])
        for part, answered in nodes.answer(parts, self._num_rows):
            self._predictor.num_tokens += answered.num_tokens
            for row, answer in zip(part, answered.answers, strict=True):
                self._count(row, answer)
                yield row, answer
            kept.keep()

    def _count(self, row: AskedRow, answer: Any) -> None:
        self._num_rows += 1
        self._num_gaps += answer is None
        self._share = row.share

    def _answer_all(self, rows: Iterator[AskedRow]) -> Iterator[tuple[AskedRow, Any]]:
        waiting: deque[AskedRow] = deque()

        def ask() -> Iterator[Any]:
            for row in rows:
                waiting.append(row)
                yield row.asked

        must_answer = self._asked.must_answer
        for _, answer in self._predictor.stream(ask(), must_answer=must_answer, num_before=self._num_rows):
            row = waiting.popleft()
            self._count(row, answer)
            yield row, answer

    def _read_progress(self) -> Reading:
        return Reading(self._predictor.num_tokens, self._share)

    def _say(self, text: str) -> None:
        say(self._console, text)

    def _warn(self, num_gaps: int, num_rows: int, nothing: str) -> None:
        sentences = self._report.warnings(self._asked.source)
        if num_gaps:
            name = "" if self._asked.source is None else f"{self._asked.source}: "
            sentences.append(f"{name}{describe_gaps(self._predictor.kind, num_gaps, num_rows)} {nothing}")
        for sentence in sentences:
            warnings.warn(sentence, InputWarning, stacklevel=4)


def _is_on_gpu(predictor: Pipeline[Any, Any]) -> bool:
    return next(predictor.kind.module.parameters()).device.type != "cpu"


def _take_part(rows: Iterator[AskedRow], max_rows: int, max_chars: int) -> Iterator[AskedRow]:
    num_rows = num_chars = 0
    while num_rows < max_rows and num_chars < max_chars:
        row = next(rows, None)
        if row is None:
            return
        num_rows += 1
        num_chars += sum(map(len, row.asked)) if isinstance(row.asked, tuple) else len(row.asked)
        yield row


def _check_can_share(on: str, model: GivenModel, tokenizer: Any, output: _Output | None) -> None:
    """Whether nodes of a cluster may answer."""
    if not names_ray(on):
        raise InputError(f"'{on}' answers no texts; known are ray and ray://HOST:PORT")
    if output is None:
        raise InputError(f"--on {on} answers to a file, part by part; name it with {OUT}")
    if isinstance(model, nn.Module) or tokenizer is not None:
        raise InputError("nodes of a cluster read a model by its name, with its own tokenizer; save it and name it")


def _describe_model(model: GivenModel) -> str:
    """A model that is named by its files; one in memory by its weights."""
    if isinstance(model, nn.Module):
        return name_module(model)
    folder = resolve_folder(model)
    return f"{folder.resolve()} {describe_files(sorted(file for file in folder.rglob('*') if file.is_file()))}"


def _hash_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()
