"""Answers on their way to a file: kept part by part beside it, so that a command that is killed can go on.

The folder `.NAME.parts` beside the file has the blocks of records, one after another, and a manifest that says how much
of them is safely on the disk, and which command they belong to. The file itself appears when all answers are there.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from maskwright.errors import InputError, InputWarning, RunInterruptedError
from maskwright.inference.outputs import AnswerColumns, AssembledFormat, Record, build_format
from maskwright.storage import naming_if_full, read_json, write_text
from maskwright.suggestions import OUT, OVERWRITE

Job = Mapping[str, Any]
"""What the answers follow from, by names for people: another value is another command."""
_FORMAT_VERSION = 1
_BLOCK_RECORDS = 1_000
_BLOCK_BYTES = 32 << 20
"""Of vectors: a block is held in memory."""
_SIZE_BYTES = 8
_FILE, _MANIFEST = "answers", "manifest.json"
_SHOWN_CHARS = 300


class KeptAnswers:
    """Takes records; `keep` makes those so far safe, and counts them."""

    def __init__(self, path: Path, columns: AnswerColumns, job: Callable[[], Job], can_repeat: bool) -> None:
        """Nothing is kept of a job that the same command cannot repeat."""
        self.folder = name_parts_folder(path)
        self.num_records = self.num_missing = 0
        """Safely on the disk."""
        self._path = path
        self._format = build_format(path, columns)
        self._job, self._can_repeat = job, can_repeat
        self._described: Job | None = None
        self._num_bytes = self._num_written = self._new_missing = 0
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._file: IO[bytes] | None = None
        self.is_open = False

    def open(self, overwrite: bool) -> None:
        """Go on from what the same command has kept; what another one has is refused, or goes if it may."""
        manifest = self._read_manifest()
        if manifest is not None and not self._check_same(manifest["job"], overwrite, manifest):
            manifest = None
        answers = self.folder / _FILE
        if manifest is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        else:
            self.num_records, self.num_missing = manifest["num_records"], manifest["num_missing"]
            self._num_bytes, self._num_written = manifest["num_bytes"], manifest["num_records"]
            os.truncate(answers, self._num_bytes)
        self._file = answers.open("ab")
        self.is_open = True

    def _read_manifest(self) -> dict[str, Any] | None:
        """None where nothing is kept, or not all that the manifest says."""
        path = self.folder / _MANIFEST
        if not path.is_file():
            return None
        answers = self.folder / _FILE
        try:
            manifest = read_json(path)
            counts = [manifest[name] for name in ("num_records", "num_missing", "num_bytes", "format_version")]
            is_whole = all(type(count) is int and count >= 0 for count in counts) and isinstance(manifest["job"], dict)
            if is_whole and counts[3] == _FORMAT_VERSION and answers.stat().st_size >= counts[2]:
                return manifest
        except (InputError, OSError, KeyError):
            pass
        warnings.warn(
            f"the answers that an earlier command kept in {self.folder} are not whole; all are computed again",
            InputWarning,
            stacklevel=2,
        )
        return None

    def _check_same(self, begun: Job, overwrite: bool, manifest: Mapping[str, Any]) -> bool:
        wanted = self._describe_job()
        changed = [name for name in {**begun, **wanted} if begun.get(name) != wanted.get(name)]
        if not changed and not self._can_repeat:
            return False
        if changed and not overwrite:
            name = changed[0]
            raise InputError(
                f"{self.folder} keeps {manifest['num_records']:,} answers for {self._path} by another command: its"
                f" {name} was {_show(begun.get(name))}, here it is {_show(wanted.get(name))}; repeat that command to"
                f" finish it, choose another {OUT}, or add {OVERWRITE} to begin again"
            )
        return not changed

    def _describe_job(self) -> Job:
        if self._described is None:
            self._described = json.loads(json.dumps(self._job(), default=str))  # as the manifest will say it
        return self._described

    def write(self, record: Record, is_missing: bool = False) -> None:
        self._pending.append(record)
        self._pending_bytes += sum(value.nbytes for value in record.values() if isinstance(value, np.ndarray))
        self._new_missing += is_missing
        if len(self._pending) >= _BLOCK_RECORDS or self._pending_bytes >= _BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        assert self._file is not None
        block = self._format.encode(self._pending)
        if isinstance(self._format, AssembledFormat):
            self._file.write(len(block).to_bytes(_SIZE_BYTES, "little"))
        self._file.write(block)
        self._num_written += len(self._pending)
        self._pending, self._pending_bytes = [], 0

    def keep(self) -> None:
        """Until here a killed command need not answer again."""
        if not self._can_repeat:
            return
        self._sync()
        counts = {
            "num_records": self._num_written,
            "num_missing": self.num_missing + self._new_missing,
            "num_bytes": self._num_bytes,
        }
        manifest = {"format_version": _FORMAT_VERSION, "job": self._describe_job(), **counts}
        write_text(self.folder / _MANIFEST, json.dumps(manifest, indent=1) + "\n")
        self.num_records, self.num_missing, self._new_missing = counts["num_records"], counts["num_missing"], 0

    def _sync(self) -> None:
        assert self._file is not None
        self._flush()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._num_bytes = self._file.tell()

    def finish(self) -> tuple[int, int]:
        """Put the whole file in its place. How many records it has, and how many of them without an answer."""
        if self.num_records:
            self.keep()  # there may be no room for the whole file beside them
        self._sync()
        if isinstance(self._format, AssembledFormat):
            self._write_whole(self._format, self.folder / self._path.name)
        else:
            os.replace(self.folder / _FILE, self._path)
        return self._num_written, self.num_missing + self._new_missing

    def _write_whole(self, assembled: AssembledFormat, whole: Path) -> None:
        with whole.open("wb") as file:
            assembled.finish(self._read_blocks, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(whole, self._path)

    def _read_blocks(self) -> Iterator[bytes]:
        with (self.folder / _FILE).open("rb") as file:
            while size := file.read(_SIZE_BYTES):
                yield file.read(int.from_bytes(size, "little"))

    def close(self, remove: bool) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a full disk, which an earlier write has said
                self._file.close()
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)


def name_parts_folder(path: Path) -> Path:
    return path.with_name(f".{path.name}.parts")


@contextmanager
def keep_answers(
    path: Path,
    columns: AnswerColumns | None = None,
    *,
    job: Callable[[], Job] = dict,
    can_repeat: bool = True,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[KeptAnswers]:
    """Answers for a file, which the caller finishes; after an error those stay that were kept, and `say` tells it."""
    kept = KeptAnswers(path, columns or AnswerColumns(), job, can_repeat)
    try:
        with naming_if_full(path, kept.folder / path.name):
            kept.open(overwrite)
            yield kept
    except BaseException as error:
        kept.close(remove=not kept.num_records and kept.is_open)
        if not kept.num_records:
            raise
        sentence = f"{kept.num_records:,} answers are kept beside {path}, and the same command goes on after them"
        if isinstance(error, KeyboardInterrupt):
            raise RunInterruptedError(f"interrupted; {sentence}", 130) from None
        say(sentence)
        raise
    kept.close(remove=True)


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
