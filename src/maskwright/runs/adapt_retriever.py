"""Adapt an encoder to find the documents of a domain, from their raw text alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.errors import InputError, RunError
from maskwright.runs.adapt import Adapted
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.finetune.inputs import GivenInputs, load_task_inputs
from maskwright.runs.finetune.report import format_score, list_scores
from maskwright.runs.finetune.settings import check_setting
from maskwright.runs.folder import own_run
from maskwright.runs.interruption import ending_in_order
from maskwright.runs.pretrain import Finished
from maskwright.runs.report import build_run_cell
from maskwright.runs.texts import Say
from maskwright.sections.base import read_value
from maskwright.sections.data import SourceConfig, SourceLike, build_sources
from maskwright.storage import read_json, restore_folder, whole_folder, write_text
from maskwright.suggestions import OUT, OVERWRITE, name_option
from maskwright.tasks.config import TaskConfig, build_task_config
from maskwright.tasks.model import answer_examples
from maskwright.tasks.retrieval.raw_pairs import RawDocument, make_pairs, read_kinds
from maskwright.tasks.tables import read_table
from maskwright.text.corpus import ReadingReport
from maskwright.text.files import file_format
from maskwright.text.huggingface import is_dataset
from maskwright.text.rows import WantedColumns, read_rows
from maskwright.text.sources import list_files, read_pairs, read_source
from maskwright.training.distributed.world import is_launched

TITLE_COLUMN = "title"
_RECORD_FILE = "pairs.json"
_TRAIN_FILE, _HELD_OUT_FILE = "train.jsonl", "held-out.jsonl"
_HELD_OUT_EVERY = 20
_MOST_HELD_OUT = 1_000
"""Documents that are held out: each held-out query is compared with all of their pairs."""
_FEWEST = 2
_TASK_SETTINGS = {"optimizer.learning_rate": "learning_rate", "data.max_length": "max_length"}


@dataclass(frozen=True)
class RetrieverOptions:
    texts: Sequence[SourceLike]
    out: Path
    pairs: str | None = None
    """Kinds of pairs, such as crops,titles; None: all that a document has."""
    epochs: int = 1
    """How often each document is cut, each time elsewhere."""
    batch_size: int = 64
    settings: Sequence[str] = ()
    overwrite: bool = False


class FinishedRetriever(Finished):
    """The run of a retriever, whose figures are scores."""

    def _repr_html_(self) -> str:
        scores = {name: format_score(value) for name, value in list_scores(self.figures).items()}
        return build_run_cell(self.folder, {}, scores)


def adapt_retriever(
    model: str, options: RetrieverOptions, console: Console, say: Say, push_to_hub: str | None, private: bool
) -> Adapted:
    """Write the pairs beside the run and train on them; finished parts are kept. The model is its own export."""
    if is_launched():
        raise InputError(
            "adaptation for retrieval writes its pairs in one process; start it without torchrun, or give the pairs of"
            " such a run to maskwright finetune retrieval"
        )
    with ending_in_order([options.out]), own_run(options.out, OUT, say, True):
        return _adapt(model, options, console, say, push_to_hub, private)


def _adapt(
    model: str, options: RetrieverOptions, console: Console, say: Say, push_to_hub: str | None, private: bool
) -> Adapted:
    own, settings = _split_settings(options.settings)
    for setting in settings:
        check_setting(setting)
    folder = options.out.with_name(f"{options.out.name}-pairs")
    _write_pairs(folder, options, say)
    config = build_task_config(
        {
            "task": "retrieval",
            "model": model,
            "train": str(folder / _TRAIN_FILE),
            "validation": str(folder / _HELD_OUT_FILE),
            "symmetric": True,
            "epochs": 1,  # the file has each document as often as it is cut
            "batch_size": options.batch_size,
            **own,
        }
    )
    task = finetune(config, options.out, settings=settings, overwrite=options.overwrite, console=console)
    if task.trouble is not None:
        raise RunError(task.trouble)
    (run,), (figures,) = task.runs, task.figures
    before = {f"{name}_before": value for name, value in _measure_before(config).items()}
    adapted = Adapted(FinishedRetriever(run, figures | before), run.model)
    if push_to_hub is not None:
        from maskwright.runs.hub import PushError, push_task

        try:
            push_task(task, push_to_hub, private, console)
        except PushError as error:
            raise PushError(str(error), adapted) from error
    return adapted


def _split_settings(settings: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Settings of the task by their names there, and words that are settings of any fine-tuning."""
    own, others = dict[str, Any](), list[str]()
    for setting in settings:
        key, _, value = setting.partition("=")
        if key in _TASK_SETTINGS:
            own[_TASK_SETTINGS[key]] = read_value(value)
        else:
            others.append(setting)
    return own, others


def _measure_before(config: TaskConfig) -> dict[str, float]:
    held_out = read_table(str(config.validation))
    inputs = load_task_inputs(config, lambda line: None, GivenInputs(train=held_out, validation=held_out))
    model = inputs.build_model(seed=0)
    answers = answer_examples(model, inputs.validation)
    examples = inputs.validation.features.examples
    return model.compute_metrics(answers.sums) | model.task.score_answers(
        answers.values, inputs.validation.targets, examples
    )


def _write_pairs(folder: Path, options: RetrieverOptions, say: Say) -> None:
    kinds = read_kinds(options.pairs)
    made_from: dict[str, Any] = {
        "texts": [one.model_dump() for one in build_sources(list(options.texts))],
        "pairs": list(kinds),
        "epochs": options.epochs,
    }
    restore_folder(folder)
    if folder.is_dir() and not options.overwrite:
        found = read_json(folder / _RECORD_FILE) if (folder / _RECORD_FILE).is_file() else None
        if found != made_from:
            raise InputError(
                f"{folder} was made from {found}, not {made_from}; choose another {OUT}, or add {OVERWRITE}"
            )
        return
    tally: Counter[str] = Counter()
    lines: dict[str, list[str]] = {_TRAIN_FILE: [], _HELD_OUT_FILE: []}
    documents = list(_read_documents(options.texts))
    for epoch in range(options.epochs):
        for number, document in enumerate(documents):
            is_held_out = number % _HELD_OUT_EVERY == 0 and number < _HELD_OUT_EVERY * _MOST_HELD_OUT
            if is_held_out and epoch:
                continue
            for pair in make_pairs(document, number, kinds, epoch):
                tally[pair.kind] += not is_held_out
                line = json.dumps({"query": pair.query, "positive": pair.positive}, ensure_ascii=False)
                lines[_HELD_OUT_FILE if is_held_out else _TRAIN_FILE].append(f"{line}\n")
    for name, written in lines.items():
        if len(written) < _FEWEST:
            kind = "to train on" if name == _TRAIN_FILE else "to hold out"
            raise InputError(
                f"the {len(documents):,} documents give {len(written)} pairs {kind}; give more, or other"
                f" {name_option('pairs')}"
            )
    with whole_folder(folder) as temporary:
        for name, written in lines.items():
            write_text(temporary / name, "".join(written))
        write_text(temporary / _RECORD_FILE, json.dumps(made_from, indent=2) + "\n")
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.items()))
    say(f"{folder}: pairs of {len(documents):,} documents: {counts}; {len(lines[_HELD_OUT_FILE]):,} are held out")


def _read_documents(texts: Sequence[SourceLike]) -> Iterator[RawDocument]:
    """Texts with their titles: of records those in the column `title`, or the first of two columns that are named."""
    for source in build_sources(list(texts)):
        if source.weight != 1.0:
            raise InputError(f"{source.path} has the weight {source.weight:g}, which pairs do not have; leave it out")
        if source.second_column is not None:
            yield from (RawDocument(*pair) for pair in read_pairs(source))
        elif source.sentences or not _has_records(source):
            yield from (RawDocument("", text) for text in read_source(source))
        else:
            yield from _read_records(source)


def _has_records(source: SourceConfig) -> bool:
    return is_dataset(source.path) or any(file_format(file) not in ("text", None) for file in list_files(source))


def _read_records(source: SourceConfig) -> Iterator[RawDocument]:
    for row in read_rows(source.path, WantedColumns(source.columns, (TITLE_COLUMN,)), ReadingReport()):
        (text,), title = row.texts, (row.values or {}).get(TITLE_COLUMN)
        if text and not text.isspace():
            yield RawDocument(title.strip() if isinstance(title, str) else "", text)
