"""Datasets of the Hugging Face hub, or saved by its library, to texts; needs the extra `hf`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.stores.addresses import is_store_url
from maskwright.text.records import Columns, RecordTally, Texts, check_columns, replace_surrogates, take_texts

PREFIX = "hf:"
_DEFAULT_SPLIT = "train"
_SAVED_FILES = ("dataset_dict.json", "state.json", "dataset_info.json")
_NAME = re.compile(r"(?P<name>[^:@]+)(:(?P<config>[^:@]+))?(@(?P<split>.+))?")
_LOADING_ERRORS = (OSError, ValueError, RuntimeError, KeyError, ImportError)


def is_dataset(path: str) -> bool:
    """Whether the path names a dataset: `hf:NAME[:CONFIG][@SPLIT]`, or a folder that `save_to_disk` wrote."""
    if is_store_url(path):
        return False
    return path.startswith(PREFIX) or _is_saved(Path(path))


def saved_folder(path: str) -> Path | None:
    """The folder of a dataset that is on this disk."""
    folder = Path(_parse(path)[0])
    return folder if _is_saved(folder) else None


def dataset_texts(path: str, columns: Columns, tally: RecordTally) -> Iterator[Texts]:
    """The texts of a split, streamed: nothing is downloaded whole and memory does not grow."""
    yield from row_texts(_load(path), path, columns, tally)


def row_texts(dataset: Iterable[Mapping[str, Any]], name: str, columns: Columns, tally: RecordTally) -> Iterator[Texts]:
    """The texts of a dataset's rows, one after another."""
    for number, row in enumerate(_read_rows(name, dataset), start=1):
        if number == 1:
            check_columns(columns, row, name)
        tally.num_seen += 1
        texts = take_texts(row, columns, name, number, tally)
        if texts is not None:
            yield replace_surrogates(texts, f"{name}:{number}", tally.report)


def is_loaded(data: Any) -> bool:
    """Whether it is a dataset of the library already, of rows or of splits."""
    return type(data).__module__.partition(".")[0] == "datasets" and hasattr(data, "column_names")


def dataset_records(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a split with the names of their classes in place of numbers, for labelled examples."""
    rows = _load(path)
    return name_classes(_read_rows(path, rows), getattr(rows, "features", None))


def name_classes(rows: Iterable[Mapping[str, Any]], features: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Rows in which numbers of classes, alone or in lists, have become names; -1, which says unlabelled, None."""
    named = {column: _find_class_names(feature) for column, feature in (features or {}).items()}
    named = {column: names for column, names in named.items() if names}
    for row in rows:
        yield {**row, **{column: _name_class(row.get(column), names) for column, names in named.items()}}


def _find_class_names(feature: Any) -> Sequence[str]:
    """Of a column of classes, or of lists of them; of any other none."""
    inner = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    return names if isinstance(names, list) else ()


def _name_class(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_name_class(one, names) for one in value]
    if not isinstance(value, int):
        return value
    return names[value] if 0 <= value < len(names) else None


def _read_rows(name: str, dataset: Any) -> Iterator[Mapping[str, Any]]:
    rows = iter(dataset)
    number = 0
    while True:
        try:
            row = next(rows, None)
        except _LOADING_ERRORS as error:
            raise _refusal(name, error, f" after {number:,} rows") from error
        if row is None:
            return
        number += 1
        yield row


def hub_version(path: str) -> str:
    """The commit that the dataset's name stands for now."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(_parse(path)[0]).sha)
    except Exception as error:  # the hub's client raises those of several network libraries
        raise _refusal(path, error, "") from error


def _load(path: str) -> Any:
    try:
        import datasets  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise InputError(f"{path} needs the package `datasets`: pip install 'maskwright[hf]'") from error
    name, config, split = _parse(path)
    try:
        folder = saved_folder(path)
        if folder is None:
            return datasets.load_dataset(name, config, split=split, streaming=True)
        saved = datasets.load_from_disk(str(folder))
    except _LOADING_ERRORS as error:
        raise _refusal(path, error, "") from error
    if not isinstance(saved, dict):
        return saved
    if split not in saved:
        raise InputError(f"{folder} has no split '{split}'; it has {', '.join(saved)}: write hf:{folder}@SPLIT")
    return saved[split]


def _parse(path: str) -> tuple[str, str | None, str]:
    name = path.removeprefix(PREFIX)
    if _is_saved(Path(name)):
        return name, None, _DEFAULT_SPLIT
    folder, _, split = name.rpartition("@")
    if folder and _is_saved(Path(folder)):
        return folder, None, split
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputError(f"'{path}' is not the name of a dataset; expected hf:NAME[:CONFIG][@SPLIT]")
    return match["name"], match["config"], match["split"] or _DEFAULT_SPLIT


def _is_saved(folder: Path) -> bool:
    try:
        names = {name for name in _SAVED_FILES if (folder / name).is_file()}
    except OSError:
        return False
    return "dataset_dict.json" in names or {"state.json", "dataset_info.json"} <= names


def _refusal(path: str, error: Exception, how_far: str) -> InputError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return InputError(f"{path} cannot be read{how_far}: {reason}; check the name, the split and the network")
