"""`maskwright prepare`: sources and a tokenizer to a folder of shards.

Tasks (`prepare_tasks.py`), done by this process or by others (`task_runners.py`), make shards of parts of the text, and
a small record of each; a part with a record is never tokenized again, so a killed preparation resumes where it was. All
of it happens in a hidden folder beside the output, marked with a key made of the sources' contents, the tokenizer and
the options: whatever changes any of them makes another key, and the work begins anew. The finished folder takes its
place in one step, so an earlier output stays whole until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import (
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    PreparedShards,
    ShardInfo,
    is_prepared,
    read_manifest,
)
from maskwright.errors import InputError, RunError
from maskwright.ownership import owning
from maskwright.runs.duplicate_search import MEMORY_BYTES, DuplicateSearch, check_memory
from maskwright.runs.prepare_tasks import (
    SPLITS,
    MadePart,
    PartMaker,
    PartRecord,
    PrepareOptions,
    Totals,
    plan_tasks,
    read_part_record,
    read_task_record,
)
from maskwright.runs.task_runners import Runner, choose_runner, skip_finished
from maskwright.runs.verdicts import FOLDER as DUPLICATES
from maskwright.sections.data import SourceConfig, check_can_hold_out, hold_pairs
from maskwright.storage import read_json, replace_folder, write_text
from maskwright.suggestions import OVERWRITE
from maskwright.text.sources import fingerprint
from maskwright.text.tokenizer.tokenizer import Tokenizer

FORMAT_VERSION = 2
"""1 had no word boundaries."""
_TASKS_VERSION = 2
"""Of what is in the hidden folder; 1 cut the text of all files of a source together."""
_NEAR_DUPLICATES_VERSION = 2
"""1 compared a document with those that were kept, 2 with the first of each of its bands."""
_KEY_FILE = "key.json"
_PARTS = "parts"
_TASKS = "tasks"


def prepare(
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    out: str | Path,
    options: PrepareOptions | None = None,
    *,
    num_workers: int | None = None,
    on: str | None = None,
    memory_bytes: int | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Prepare the folder `out`, unless it is complete already; returns its manifest.

    `on` says who does the tasks: None is this process, `processes` several here, `ray` or `ray://HOST:PORT` a cluster.
    Duplicates are searched with `memory_bytes` in each of them; None is 1 GiB, and in this process all it takes.
    """
    options = options or PrepareOptions()
    runner = choose_runner(on, num_workers or os.cpu_count() or 1)
    if memory_bytes is not None and not options.compares_documents:
        raise InputError(
            "a limit of memory is for the search for duplicates; set quality.drop_duplicates=true or"
            " quality.drop_near_duplicates=true, or leave the limit out"
        )
    if memory_bytes is not None:
        check_memory(memory_bytes)
    elif on is not None:
        memory_bytes = MEMORY_BYTES
    if hold_pairs(sources):
        raise InputError("shards hold single texts, the sources give pairs (second_column); train on the files instead")
    if 0 < options.validation_share < 1:
        check_can_hold_out(sources)
    out = Path(out).resolve()
    with owning(out, instead="output folder", say=say):
        return _prepare(sources, tokenizer, out, options, runner, memory_bytes, overwrite, say)


def _prepare(
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    out: Path,
    options: PrepareOptions,
    runner: Runner,
    memory_bytes: int | None,
    overwrite: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    key, described = _describe(sources, tokenizer, options)
    if not overwrite and is_prepared(out) and read_manifest(out)["key"] == key:
        say(f"{out} is already prepared from these sources, tokenizer and options")
        return read_manifest(out)
    _check_output(out, described, overwrite)
    work = out.with_name(f".{out.name}.preparing")
    try:
        _open_work(work, key, say)
        tokenizer.save(work / TOKENIZER_FOLDER)
        manifest = _write_shards(work, sources, tokenizer, options, runner, memory_bytes, say)
        manifest = {"format": FORMAT_VERSION, "key": key, **described, **manifest}
        write_text(work / MANIFEST_FILE, json.dumps(manifest, indent=2) + "\n")
        (work / _KEY_FILE).unlink()
        for folder in (_PARTS, _TASKS, DUPLICATES):
            if (work / folder).exists():
                shutil.rmtree(work / folder)
        replace_folder(work, out)
    except OSError as error:
        raise RunError(
            f"cannot write {error.filename or work}: {error.strerror}; what is finished stays in {work}, the same"
            " command goes on with it"
        ) from error
    return manifest


def describe_prepared(folder: Path, row_length: int) -> list[str]:
    """What a prepared folder holds, and how full its rows of this length are; the counting speeds up later runs."""
    manifest = read_manifest(folder)
    lines = []
    for split in SPLITS:
        shards = PreparedShards(folder, split)
        if not shards.num_tokens:
            continue
        num_bytes = sum(info.num_bytes for info in shards.infos)
        loader = PackedLoader(
            shards, cls_token_id=0, sep_token_id=0, pad_token_id=0, row_length=row_length, rows_per_batch=1
        )
        ids_bytes = shards.num_tokens * np.dtype(shards.infos[0].ids_dtype).itemsize
        lines.append(
            f"{split}: {shards.num_documents:,} documents, {shards.num_tokens:,} tokens, {shards.num_shards} shards,"
            f" {num_bytes / 1e6:,.1f} MB ({num_bytes / ids_bytes:.3f}x the ids),"
            f" rows of {row_length} {loader.utilisation():.1%} full"
        )
    num_dropped = manifest["num_encoded_tokens"] - manifest["num_tokens"]
    lines.append(
        f"{num_dropped:,} tokens dropped; {manifest['num_unknown_tokens']:,} unknown tokens,"
        f" {manifest['num_empty_documents']:,} documents without tokens"
    )
    return lines


def _describe(
    sources: Sequence[SourceConfig], tokenizer: Tokenizer, options: PrepareOptions
) -> tuple[str, dict[str, Any]]:
    """A key that changes with anything that changes the shards, and what it is made of."""
    described = {
        "sources": [describe_source(source) for source in sources],
        "tokenizer_sha256": hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "options": {**asdict(options), "quality": options.quality.model_dump()},
    }
    if options.quality.drop_near_duplicates:  # other folders stay as they are
        described["near_duplicates"] = _NEAR_DUPLICATES_VERSION
    text = json.dumps({"format": FORMAT_VERSION, **described}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest(), described


def describe_source(source: SourceConfig) -> dict[str, Any]:
    """What a source is: its settings and its files."""
    described = source.model_dump(exclude={"second_column"})
    if not source.sentences:  # not there before sentences could be read: such folders stay as they are
        del described["sentences"]
    if not source.start:  # likewise
        del described["start"]
    if source.name is None:
        del described["name"]
    return described | {"files": fingerprint(source)}


def _check_output(out: Path, described: dict[str, Any], overwrite: bool) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not is_prepared(out):
        raise InputError(f"{out} exists and is not prepared data; choose another folder")
    others = sorted(path.name for path in out.iterdir() if path.name not in (MANIFEST_FILE, TOKENIZER_FOLDER, *SPLITS))
    if others:
        raise InputError(f"{out} holds other files, such as {others[0]}; choose another folder")
    if not overwrite:
        old = read_manifest(out)
        if old.get("format") != FORMAT_VERSION:
            raise InputError(
                f"{out} was prepared by another version of maskwright (format {old.get('format')}, this one writes"
                f" {FORMAT_VERSION}); choose another folder, or add {OVERWRITE}"
            )
        changed = [name for name in described if old.get(name) != described[name]]
        raise InputError(
            f"{out} was prepared with other {', '.join(changed)}; choose another folder, or add {OVERWRITE}"
        )


def _open_work(work: Path, key: str, say: Callable[[str], None]) -> None:
    key_file = work / _KEY_FILE
    wanted = {"key": key, "tasks": _TASKS_VERSION}
    if work.exists() and (not key_file.is_file() or read_json(key_file) != wanted):
        shutil.rmtree(work)
    if key_file.is_file():
        say(f"going on with {len(list((work / _PARTS).glob('*.json')))} finished parts")
        return
    for folder in (_PARTS, _TASKS):
        (work / folder).mkdir(parents=True)
    write_text(key_file, json.dumps(wanted) + "\n")


def _write_shards(
    work: Path,
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    options: PrepareOptions,
    runner: Runner,
    memory_bytes: int | None,
    say: Callable[[str], None],
) -> dict[str, Any]:
    begun = time.monotonic()
    totals = Totals(sources)
    parts = {file.stem: read_part_record(file) for file in sorted((work / _PARTS).glob("*.json"))}
    waiting = []
    tasks = plan_tasks(sources, options.part_chars)
    verdicts = None
    if options.compares_documents and memory_bytes is not None:
        search = DuplicateSearch(work, runner, say, memory_bytes)
        verdicts = search.run(sources, options.quality, tasks)
    for task in tasks:
        file = work / _TASKS / f"{task.name}.json"
        record = read_task_record(file) if file.is_file() else None
        # documents that are compared while they are read have to be read again
        if record is None or (options.compares_documents and verdicts is None) or not set(record.parts) <= set(parts):
            waiting.append(skip_finished(task, list(parts)))
        else:
            totals.add(task, record)
    for task, made in runner.run(PartMaker(sources, tokenizer, options, verdicts), waiting, work):
        if isinstance(made, MadePart):
            write_text(work / _PARTS / f"{made.name}.json", json.dumps(asdict(made.record)) + "\n")
            parts[made.name] = made.record
            _tell_progress(parts, begun, say)
        else:
            totals.add(task, made)
            write_text(work / _TASKS / f"{task.name}.json", json.dumps(asdict(made)) + "\n")
    totals.check()
    quality = totals.merge_quality()
    for line in [*totals.merge_reading().warnings(), *quality.lines()]:
        say(line)
    return _summarise([parts[name] for name in totals.list_parts()]) | {"dropped_documents": dict(quality.dropped)}


def _tell_progress(parts: Mapping[str, PartRecord], begun: float, say: Callable[[str], None]) -> None:
    records = parts.values()
    num_chars = sum(record.num_chars for record in records)
    rate = num_chars / max(time.monotonic() - begun, 1e-9) / 1e6
    num_documents = sum(record.num_documents for record in records)
    say(f"part {len(records)}: {num_documents:,} documents, {num_chars / 1e6:,.0f}M characters, {rate:.1f}M/s")


def _summarise(records: list[PartRecord]) -> dict[str, Any]:
    splits = {split: [asdict(info) for info in _list_shards(records, split)] for split in SPLITS}
    if not any(splits.values()):
        raise InputError("no document is left; check the sources and the quality settings")
    return {
        "splits": splits,
        "num_documents": sum(record.num_documents for record in records),
        "num_chars": sum(record.num_chars for record in records),
        "num_tokens": sum(shard["num_tokens"] for shards in splits.values() for shard in shards),
        "num_encoded_tokens": sum(record.num_encoded for record in records),
        "num_empty_documents": sum(record.num_empty for record in records),
        "num_unknown_tokens": sum(record.num_unknown for record in records),
    }


def _list_shards(records: list[PartRecord], split: str) -> Iterator[ShardInfo]:
    for record in records:
        info = (record.shards or {}).get(split)
        if info is not None:
            yield info
