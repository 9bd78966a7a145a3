"""GLUE's published files: which tasks a folder has, and their examples as files that runs are trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maskwright.errors import InputError
from maskwright.randomness import Stream, compute_key, permutation
from maskwright.runs.texts import Say
from maskwright.storage import write_text
from maskwright.suggestions import OUT, suggest
from maskwright.tasks.examples import ColumnNames, Example, read_examples
from maskwright.text.files import file_format

HELD_OUT_SHARE = 0.1
_HELD_OUT_SEED = 0
_FORMATS = ("csv", "tsv", "jsonl")
_DEV_WORDS = ("dev", "validation", "valid", "val")
_MISMATCHED = "mismatched"
_OTHER_DOMAIN = "out"
_MAIN_SET = "dev"


@dataclass(frozen=True)
class GlueTask:
    name: str
    kind: str
    """What `finetune` calls the task."""
    metrics: tuple[str, ...]
    """GLUE's own (Wang et al. 2019, table 1)."""
    folders: tuple[str, ...] = ()
    """Other names of its folder."""


TASKS = (
    GlueTask("CoLA", "classification", ("matthews",)),
    GlueTask("SST-2", "classification", ("accuracy",)),
    GlueTask("MRPC", "pairs", ("accuracy", "f1")),
    GlueTask("STS-B", "regression", ("pearson", "spearman"), ("stsbenchmark",)),
    GlueTask("QQP", "pairs", ("accuracy", "f1")),
    GlueTask("MNLI", "pairs", ("accuracy",)),
    GlueTask("QNLI", "pairs", ("accuracy",)),
    GlueTask("RTE", "pairs", ("accuracy",)),
    GlueTask("WNLI", "pairs", ("accuracy",)),
)


@dataclass(frozen=True)
class FoundTask:
    task: GlueTask
    train: Path
    held_out: dict[str, Path] = field(default_factory=dict)
    """By name of the set; none where a share of `train` must do."""


@dataclass(frozen=True)
class TaskFiles:
    task: GlueTask
    train: Path
    held_out: dict[str, Path]

    @property
    def validation(self) -> Path:
        """What training is watched by."""
        return next(iter(self.held_out.values()))


def find_tasks(folder: Path, chosen: Sequence[str] | None, say: Say) -> list[FoundTask]:
    """The tasks of a folder, or of the folder of one task; what is not there is said."""
    if not folder.is_dir():
        raise InputError(f"no folder at {folder}; give the one that holds GLUE's folders, such as CoLA and RTE")
    known = {_simplify(task.name): task for task in TASKS}
    for name in chosen or ():
        if _simplify(name) not in known:
            raise InputError(f"GLUE has no task '{name}'{suggest(name, [task.name for task in TASKS])}")
    own_name = _simplify(folder.resolve().name)
    if chosen is None and own_name in known:
        chosen = [own_name]
    asked = [task for task in TASKS if chosen is None or _simplify(task.name) in map(_simplify, chosen)]
    folders = {_simplify(path.name): path for path in [*sorted(folder.iterdir()), folder.resolve()] if path.is_dir()}
    found = []
    for task in asked:
        names = [name for name in map(_simplify, (task.name, *task.folders)) if name in folders]
        one = None if not names else _find_files(task, folders[names[0]])
        if one is None:
            say(f"{task.name}: no training file in {folder}, left out")
        else:
            found.append(one)
    if not found:
        raise InputError(f"{folder} holds no training file of {', '.join(task.name for task in asked)}; check the path")
    return found


def write_files(found: FoundTask, folder: Path, limit: int | None, say: Say) -> TaskFiles:
    """The examples as this package reads them; a folder that has others already is left as it is, and refused."""
    needs_pair = found.task.kind in ("pairs", "regression")
    train = read_examples(found.train, ColumnNames(), needs_pair).examples
    sets = {name: read_examples(path, ColumnNames(), needs_pair).examples for name, path in found.held_out.items()}
    if not sets:
        train, sets[_MAIN_SET] = _hold_out(train)
        say(
            f"{found.task.name}: no held-out file, so {len(sets[_MAIN_SET]):,} of the {found.train.name} examples are"
            " held out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: _write(folder / f"{name}.jsonl", examples) for name, examples in sets.items()}
    return TaskFiles(found.task, _write(folder / "train.jsonl", train[:limit]), files)


def _find_files(task: GlueTask, folder: Path) -> FoundTask | None:
    words = {
        path: re.split(r"[^a-z0-9]+", path.name.split(".")[0].lower())
        for path in sorted(folder.iterdir())
        if path.is_file() and file_format(path) in _FORMATS
    }
    train = next((path for path, of_name in words.items() if "train" in of_name), None)
    if train is None:
        return None
    dev = [path for path, of_name in words.items() if set(of_name) & set(_DEV_WORDS) and _OTHER_DOMAIN not in of_name]
    mismatched = [path for path in dev if _MISMATCHED in words[path]]
    matched = sorted((path for path in dev if path not in mismatched), key=lambda path: len(words[path]))
    held_out = {_MAIN_SET: matched[0]} if matched else {}
    return FoundTask(task, train, held_out | ({_MISMATCHED: mismatched[0]} if mismatched else {}))


def _hold_out(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """The same share in every call, in the order of the file."""
    order = permutation(len(examples), compute_key(_HELD_OUT_SEED, 0, Stream.PARTS)).tolist()
    chosen = set(order[: max(1, round(HELD_OUT_SHARE * len(examples)))])
    kept = [example for number, example in enumerate(examples) if number not in chosen]
    return kept, [examples[number] for number in sorted(chosen)]


def _write(path: Path, examples: Sequence[Example]) -> Path:
    records = [
        {"sentence": one.text, "label": one.label}
        if one.second is None
        else {"sentence1": one.text, "sentence2": one.second, "label": one.label}
        for one in examples
    ]
    content = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if not path.exists():
        write_text(path, content)
    elif path.read_text(encoding="utf-8") != content:
        raise InputError(f"{path} holds other examples than this command asks for; choose another {OUT}")
    return path


def _simplify(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
