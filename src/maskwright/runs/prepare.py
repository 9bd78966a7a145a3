"""`maskwright prepare`: sources and a tokenizer to a folder of shards.

The stream of documents is cut into parts of a fixed amount of text. Each part becomes one shard of every split and a
small record; a part with a record is never tokenized again, so a killed preparation resumes where it was. All of it
happens in a hidden folder beside the output, marked with a key made of the sources' contents, the tokenizer and the
options: whatever changes any of them makes another key, and the work begins anew. The finished folder takes its place
in one step, so an earlier output stays whole until then.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import (
    MANIFEST_FILE,
    TOKENIZER_FOLDER,
    PreparedShards,
    ShardInfo,
    ShardWriter,
    choose_ids_dtype,
    is_prepared,
    read_manifest,
)
from maskwright.errors import InputError, RunError
from maskwright.ownership import owning
from maskwright.runs.texts import is_held_out
from maskwright.sections.data import QualityConfig, SourceConfig, check_can_hold_out, hold_pairs
from maskwright.storage import read_json, read_record, replace_folder, write_text
from maskwright.suggestions import OVERWRITE
from maskwright.text.corpus import ReadingReport
from maskwright.text.quality import DocumentCleaner
from maskwright.text.sources import fingerprint, read_source
from maskwright.text.tokenizer.encode import EncodedTexts, TextEncoder
from maskwright.text.tokenizer.tokenizer import Tokenizer, group_texts

FORMAT_VERSION = 2
"""1 had no word boundaries."""
SPLITS = ("train", "validation")
_GROUP_CHARS = 250_000
_KEY_FILE = "key.json"


@dataclass(frozen=True)
class PrepareOptions:
    """Options that change the content of the shards, beside sources and tokenizer."""

    validation_share: float = 0.01
    quality: QualityConfig = field(default_factory=QualityConfig)
    part_chars: int = 16_000_000

    def __post_init__(self) -> None:
        if not 0.0 <= self.validation_share <= 1.0:
            raise InputError(f"the validation share is {self.validation_share}; it must lie in [0, 1]")
        if self.part_chars < 1:
            raise InputError(f"the text of a part is {self.part_chars} characters; it must be at least 1")


@dataclass
class PartRecord:
    """The record of one finished part of the text."""

    num_documents: int = 0
    num_chars: int = 0
    num_encoded: int = 0
    num_empty: int = 0
    num_unknown: int = 0
    shards: dict[str, ShardInfo | None] | None = None


def prepare(
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    out: str | Path,
    options: PrepareOptions | None = None,
    *,
    num_workers: int | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Prepare the folder `out`, unless it is complete already; returns its manifest."""
    options = options or PrepareOptions()
    if hold_pairs(sources):
        raise InputError("shards hold single texts, the sources give pairs (second_column); train on the files instead")
    if 0 < options.validation_share < 1:
        check_can_hold_out(sources)
    out = Path(out).resolve()
    with owning(out, instead="output folder", say=say):
        return _prepare(sources, tokenizer, out, options, num_workers or os.cpu_count() or 1, overwrite, say)


def _prepare(
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    out: Path,
    options: PrepareOptions,
    num_workers: int,
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
        manifest = _write_shards(work, sources, tokenizer, options, num_workers, say)
        manifest = {"format": FORMAT_VERSION, "key": key, **described, **manifest}
        write_text(work / MANIFEST_FILE, json.dumps(manifest, indent=2) + "\n")
        (work / _KEY_FILE).unlink()
        shutil.rmtree(work / "parts")
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
        "sources": [_describe_source(source) for source in sources],
        "tokenizer_sha256": hashlib.sha256(tokenizer.backend.to_str().encode()).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "options": {**asdict(options), "quality": options.quality.model_dump()},
    }
    text = json.dumps({"format": FORMAT_VERSION, **described}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest(), described


def _describe_source(source: SourceConfig) -> dict[str, Any]:
    described = source.model_dump(exclude={"second_column"})
    if not source.sentences:  # not there before sentences could be read: such folders stay as they are
        del described["sentences"]
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
    if work.exists() and (not key_file.is_file() or read_json(key_file).get("key") != key):
        shutil.rmtree(work)
    if key_file.is_file():
        say(f"going on with {len(list((work / 'parts').glob('*.json')))} finished parts")
        return
    (work / "parts").mkdir(parents=True)
    write_text(key_file, json.dumps({"key": key}) + "\n")


def _write_shards(
    work: Path,
    sources: Sequence[SourceConfig],
    tokenizer: Tokenizer,
    options: PrepareOptions,
    num_workers: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    begun = time.monotonic()
    reading, cleaner = ReadingReport(), DocumentCleaner(options.quality)
    records: list[PartRecord] = []
    with TextEncoder(tokenizer, num_workers) as encoder:
        for number, source in enumerate(sources):
            documents = cleaner.clean(read_source(source, reading))
            for part, texts in enumerate(_cut_parts(documents, options.part_chars)):
                writer = _PartWriter(work, f"{number:03d}-{part:05d}", number, tokenizer, options)
                records.append(writer.write(texts, encoder))
                _tell_progress(records, begun, say)
    for line in [*reading.warnings(), *cleaner.report.lines()]:
        say(line)
    return _summarise(records) | {"dropped_documents": dict(cleaner.report.dropped)}


class _PartWriter:
    """Makes the shards of one part, unless its record says that they are made."""

    def __init__(self, work: Path, name: str, source: int, tokenizer: Tokenizer, options: PrepareOptions) -> None:
        self._work, self._name, self._source = work, name, source
        self._record_file = work / "parts" / f"{name}.json"
        self._share = options.validation_share
        self._dtype = choose_ids_dtype(tokenizer.vocab_size)
        self._unknown = tokenizer.unk_token_id

    def write(self, texts: Iterator[str], encoder: TextEncoder) -> PartRecord:
        if self._record_file.is_file():
            for _ in texts:
                pass
            return _read_record(self._record_file)
        record = PartRecord()
        train, validation = (ShardWriter(self._work / split, self._name, self._dtype, self._source) for split in SPLITS)
        with train, validation:
            for encoded in encoder.encode(group_texts(texts, _GROUP_CHARS)):
                self._add(encoded, train, validation, record)
            record.shards = {"train": train.close(), "validation": validation.close()}
        write_text(self._record_file, json.dumps(asdict(record)) + "\n")
        return record

    def _add(self, encoded: EncodedTexts, train: ShardWriter, validation: ShardWriter, record: PartRecord) -> None:
        held_out = np.asarray([is_held_out(text, self._share) for text in encoded.texts], dtype=bool)
        for writer, is_its in ((train, ~held_out), (validation, held_out)):
            tokens = np.repeat(is_its, encoded.lengths)
            writer.add(encoded.ids[tokens], encoded.lengths[is_its], encoded.word_starts[tokens])
        record.num_documents += len(encoded.texts)
        record.num_chars += sum(map(len, encoded.texts))
        record.num_encoded += len(encoded.ids)
        record.num_empty += int((encoded.lengths == 0).sum())
        record.num_unknown += int((encoded.ids == self._unknown).sum())


def _cut_parts(documents: Iterator[str], part_chars: int) -> Iterator[Iterator[str]]:
    """Runs of documents of about `part_chars` characters; each must be read to its end before the next."""
    waiting = next(documents, None)

    def one_part() -> Iterator[str]:
        nonlocal waiting
        num_chars = 0
        while waiting is not None and num_chars < part_chars:
            num_chars += len(waiting)
            yield waiting
            waiting = next(documents, None)

    while waiting is not None:
        yield one_part()


def _read_record(file: Path) -> PartRecord:
    try:
        values = read_json(file)
        record = read_record(PartRecord, values, file)
        if asdict(record).keys() != values.keys() or (record.shards or {}).keys() != set(SPLITS):
            raise InputError(f"{file} is damaged: it does not say what became of its part")
        return record
    except InputError as error:
        raise InputError(f"{error}; delete it, and this part of the text is prepared again") from None


def _tell_progress(records: list[PartRecord], begun: float, say: Callable[[str], None]) -> None:
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
