"""`maskwright index` and `maskwright.index`: documents to an index that `search` finds them in.

Documents are embedded part by part, and each part is written whole: a command that was killed goes on after the last.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console

from maskwright.errors import InputError, InputWarning
from maskwright.inference.loading import find_kind
from maskwright.inference.precision import Compile
from maskwright.inference.search.index_folder import (
    LEXICAL,
    OFFSETS_FILE,
    Document,
    IndexedSource,
    Manifest,
    Part,
    is_index,
    list_parts,
    read_manifest,
    write_manifest,
    write_part,
)
from maskwright.inference.search.lexical import BM25, LexicalIndex, check_bm25
from maskwright.inference.search.quantized import FLOAT, STORES, Array
from maskwright.inference.search.retriever import Retriever, check_options, open_retriever
from maskwright.models.files.model_folder import resolve_folder
from maskwright.ownership import owning
from maskwright.runs.progress import Reading, show_progress
from maskwright.storage import whole_folder
from maskwright.suggestions import OUT, OVERWRITE, checks_arguments, name_option, refuse_below, suggest
from maskwright.tasks.retrieval.collection import ID_COLUMNS, TITLE_COLUMN, find_corpus, is_collection
from maskwright.terminal import CleanConsole, say
from maskwright.text.corpus import ReadingReport
from maskwright.text.files import hash_file
from maskwright.text.in_memory import TEXT_COLUMN
from maskwright.text.rows import SourceRow, WantedColumns, read_rows
from maskwright.text.sources import fingerprint as list_fingerprints

_CPU_PART, _PART = 512, 8_192
"""Documents of a part: what is lost at most when a command is killed."""
_APPEND = name_option("append", "True")
_MODEL_FILES = ("*.safetensors", "*.json")


@checks_arguments
def index(
    model: str | Path,
    corpus: str | Path,
    *,
    out: str | Path,
    store: str = FLOAT,
    dims: int | None = None,
    column: str = TEXT_COLUMN,
    append: bool = False,
    overwrite: bool = False,
    precision: str | None = None,
    compile: Compile | None = None,
    console: Console | None = None,
) -> Path:
    """Make an index of a corpus with a retriever, or with `bm25`; the same call goes on where it was killed.

    The corpus is a collection in BEIR's layout, or any source of texts; documents have the id of their column `_id` or
    `id`, or are numbered. Vectors are stored as `float`, `int8` or `binary` (with int8 to rescore), of `dims` numbers;
    sparse ones as an inverted index.
    `append` adds another corpus to an index. Returns its folder.
    """
    if store not in STORES:
        raise InputError(f"there is no store '{store}'{suggest(store, STORES)}")
    refuse_below(1, dims=dims)
    shown, folder = console or CleanConsole(), Path(out)
    source = find_corpus(Path(corpus)) if is_collection(corpus) else str(corpus)
    wanted = describe_model(str(model), store, dims)
    with owning(folder):
        manifest = _plan(folder, wanted, _describe_source(source, column), append, overwrite)
        retriever: Retriever | None = None
        if wanted.kind != BM25:
            retriever = open_retriever(str(model), store=store, dims=dims, precision=precision, compile=compile)
        if overwrite and is_index(folder):
            shutil.rmtree(folder)
        _Work(folder, manifest, column, partial(say, shown), shown).run(retriever)
    return folder


def describe_model(name: str, store: str = FLOAT, dims: int | None = None) -> Manifest:
    """What an index by this model says of it."""
    if name == BM25:
        check_bm25()
        if store != FLOAT or dims is not None:
            raise InputError(f"--store and --dims are for vectors, and {BM25} has none; leave them out")
        return Manifest(BM25, name, "", store)
    folder = resolve_folder(name)
    kind = find_kind(folder)
    check_options(kind, store, dims)
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(path for pattern in _MODEL_FILES for path in folder.rglob(pattern)):
        digest.update(f"{path.relative_to(folder)} {hash_file(path)}\0".encode())
    return Manifest(kind, name, digest.hexdigest(), store, dims)


def _describe_source(source: str, column: str) -> IndexedSource:
    files = "\0".join(f"{one['path']} {one['size']} {one['hash']}" for one in list_fingerprints(source))
    return IndexedSource(source, hashlib.blake2b(f"{files}\0{column}".encode(), digest_size=16).hexdigest())


def _plan(folder: Path, wanted: Manifest, source: IndexedSource, append: bool, overwrite: bool) -> Manifest:
    """The manifest with this source as its last; what is there already is checked."""
    if is_index(folder) and not overwrite:
        return _go_on(folder, read_manifest(folder), wanted, source, append)
    if not is_index(folder) and folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists and is no index; choose another {OUT}")
    if append:
        raise InputError(f"{folder} holds no index to append to; leave {_APPEND} out")
    return replace(wanted, sources=(source,))


def _go_on(folder: Path, found: Manifest, wanted: Manifest, source: IndexedSource, append: bool) -> Manifest:
    instead = f"choose another {OUT}, or add {OVERWRITE}"
    if (found.kind, found.fingerprint) != (wanted.kind, wanted.fingerprint):
        raise InputError(
            f"{folder} is an index by {found.model}, and {wanted.model} is another model; give that model, {instead}"
        )
    if (found.store, found.dims) != (wanted.store, wanted.dims):
        raise InputError(
            f"{folder} stores vectors as {found.store}, {found.dims or 'all'} numbers of each; repeat that, {instead}"
        )
    if not found.is_finished:
        last = found.sources[-1]
        if last.fingerprint == source.fingerprint:
            return found
        raise InputError(
            f"{folder} is not finished: {last.name} is not all in it, or has changed; repeat that command first, or add"
            f" {OVERWRITE}"
        )
    if any(one.fingerprint == source.fingerprint for one in found.sources):
        raise InputError(f"{folder} holds {source.name} already; {instead}")
    if not append:
        raise InputError(f"{folder} holds an index; add {_APPEND} to add documents to it, {instead}")
    return replace(found, sources=(*found.sources, source))


@dataclass
class _Work:
    """The last source of a manifest on its way into the index."""

    folder: Path
    manifest: Manifest
    column: str
    say: Callable[[str], None]
    console: Console
    share: float | None = None
    """How much of the source was read."""

    def run(self, retriever: Retriever | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_manifest(self.folder, self.manifest)
        *earlier, source = self.manifest.sources
        parts = list_parts(self.folder, len(earlier))
        num_records, num_documents = _count(parts)
        if num_records:
            self.say(f"going on after {num_documents:,} documents that an earlier command indexed")
        report = ReadingReport()
        rows = read_rows(source.name, WantedColumns((self.column,), (*ID_COLUMNS, TITLE_COLUMN)), report)
        first = sum(one.num_records or 0 for one in earlier) + num_records
        documents = self._noting(_build_documents(islice(rows, num_records, None), first, self.column))
        parts_left = iter(lambda: list(islice(documents, _choose_size(retriever))), [])
        kept = (
            document
            for number, part in enumerate(parts_left, start=len(parts))
            for document in self._keep(len(earlier), number, part, retriever)
        )
        for _ in show_progress(kept, self.console, "document", lambda: self._read_progress(retriever), num_documents):
            pass
        self._finish(report)

    def _noting(self, places: Iterator[tuple[Document | None, float | None]]) -> Iterator[Document | None]:
        for document, self.share in places:
            yield document

    def _keep(
        self, source: int, number: int, part: Sequence[Document | None], retriever: Retriever | None
    ) -> list[Document]:
        """A part is written as soon as it is embedded; its documents."""
        kept = [one for one in part if one is not None]
        arrays: dict[str, Array] = {}
        if retriever is not None:
            answers = retriever.documents.stream([one.text for one in kept])
            found = [(one, vector) for one, (_, vector) in zip(kept, answers, strict=True) if vector is not None]
            kept = [one for one, _ in found]  # a text of which the tokenizer leaves nothing is as if it were empty
            if kept:
                arrays = retriever.store([vector for _, vector in found])
        write_part(self.folder, source, number, kept, arrays, len(part))
        return kept

    def _read_progress(self, retriever: Retriever | None) -> Reading:
        return Reading(0 if retriever is None else retriever.documents.num_tokens, self.share)

    def _finish(self, report: ReadingReport) -> None:
        number, last = len(self.manifest.sources) - 1, self.manifest.sources[-1]
        if self.manifest.kind == BM25:
            every = [part for source in range(number + 1) for part in list_parts(self.folder, source)]
            lexical = LexicalIndex.build([one.text for part in every for one in part.read_documents()])
            with whole_folder(self.folder / LEXICAL) as folder:
                lexical.save(folder)
        num_records, num_documents = _count(list_parts(self.folder, number))
        self.manifest = self.manifest.with_last(replace(last, num_records=num_records, num_documents=num_documents))
        write_manifest(self.folder, self.manifest)
        for sentence in report.warnings(last.name):
            warnings.warn(sentence, InputWarning, stacklevel=4)
        if num_records > num_documents:
            self.say(f"{num_records - num_documents:,} records without a text are left out")
        total = self.manifest.num_documents
        num_bytes = sum(path.stat().st_size for path in self.folder.rglob("*.npy") if path.name != OFFSETS_FILE)
        self.say(f"{self.folder}: {total:,} documents, {num_bytes / max(1, total):,.0f} bytes each beside their texts")


def _choose_size(retriever: Retriever | None) -> int:
    is_slow = retriever is not None and next(retriever.documents.kind.encoder.parameters()).device.type == "cpu"
    return _CPU_PART if is_slow else _PART


def _count(parts: Sequence[Part]) -> tuple[int, int]:
    """Records and documents."""
    return sum(part.num_records for part in parts), sum(part.num_documents for part in parts)


def _build_documents(
    rows: Iterable[SourceRow], num_before: int, column: str
) -> Iterator[tuple[Document | None, float | None]]:
    """Every record in its place, None where it has no text; with the share of the source before the next."""
    for number, row in enumerate(rows, start=num_before):
        values = row.values or {}
        name = next((str(values[one]) for one in ID_COLUMNS if values.get(one) not in (None, "")), str(number))
        title = values.get(TITLE_COLUMN)
        parts = (title.strip() if isinstance(title, str) else "", (row.texts[0] or "").strip())
        text = " ".join(part for part in parts if part)
        yield Document(name, text) if text else None, row.share
