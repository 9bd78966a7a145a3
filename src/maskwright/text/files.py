"""Which files a path, folder, glob or URL stands for, of which formats, and what tells whether one has changed."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from maskwright.errors import InputError
from maskwright.stores.addresses import Place, StoreUrl, find_place, parse_url
from maskwright.stores.objects import list_objects, measure_object, read_versions
from maskwright.text.streams import COMPRESSIONS, open_file, refuse_special

FORMATS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".fasta": "fasta",
    ".fa": "fasta",
    ".faa": "fasta",
    ".fna": "fasta",
}


def file_format(path: Place) -> str | None:
    """The format that the suffix names, before one of compression; None if it names none."""
    name = path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path
    return FORMATS.get(name.suffix.lower())


def find_files(path: str) -> list[Place]:
    """The one file; or, sorted by name, every file of a known format that a folder (at any depth) or glob holds.

    Links are followed, and a file that is reached in several ways counts once. A URL names objects of a store.
    """
    place = find_place(path)
    if isinstance(place, StoreUrl):
        return [*_find_objects(place)]
    return [*find_on_disk(place)]


def _find_objects(url: StoreUrl) -> list[StoreUrl]:
    """As on a disk, where the part of a name before a slash is a folder."""
    if not glob.has_magic(url.key):
        objects = [stored.url for stored in list_objects(url)]
        if objects == [url]:
            if file_format(url) is None:
                raise InputError(f"{url} has an unknown suffix; {_known_suffixes()}")
            return objects
        root, pattern = url, ["**", "*"]
    else:
        parts = url.url.split("/")
        depth = next(place for place, part in enumerate(parts) if glob.has_magic(part))
        root, pattern = parse_url("/".join(parts[:depth])), parts[depth:]
        objects = [stored.url for stored in list_objects(root)]
    prefix = len(root.url.rstrip("/")) + 1
    found = [one for one in objects if file_format(one) and _matches(one.url[prefix:].split("/"), pattern)]
    if not found:
        state = "no object" if not objects else "no object that can be read"
        raise InputError(f"there is {state} at {url}; {_known_suffixes()}")
    return found


def find_on_disk(place: Path) -> list[Path]:
    """As `find_files`, for a path alone."""
    path = str(place)
    if _exists(place) and not place.is_dir():
        refuse_special(place, place.stat().st_mode)
        if file_format(place) is None:
            raise InputError(f"{place} has an unknown suffix; {_known_suffixes()}")
        return [place]
    if place.is_dir():
        found: Iterable[Path] = (file for file in _walk(place) if not _is_hidden(file.relative_to(place)))
    elif glob.has_magic(path):
        found = _expand_glob(place)
    else:
        raise InputError(f"no file, folder or glob match at {place}")
    files = sorted((file for file in found if file_format(file) and _is_file(file)), key=Path.as_posix)
    if not files:
        raise InputError(f"{place} holds no file that can be read; {_known_suffixes()}")
    real: dict[str, Path] = {}
    for file in sorted(files, key=Path.is_symlink):  # what links lead to comes before them
        real.setdefault(os.path.realpath(file), file)
    return sorted(real.values(), key=Path.as_posix)


def _walk(root: Path) -> Iterator[Path]:
    """The files below a folder; each folder is entered once, those that links lead to after all others."""
    seen: set[str] = set()
    waiting = deque([str(root)])
    while waiting:
        for name, folders, files in os.walk(waiting.popleft()):
            real = os.path.realpath(name)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            waiting += [link for folder in folders if os.path.islink(link := os.path.join(name, folder))]
            yield from (Path(name, file) for file in files)


def _expand_glob(pattern: Path) -> Iterator[Path]:
    """As `glob.iglob`, whose `**` goes round in circles where links do."""
    if "**" not in pattern.parts:
        yield from map(Path, glob.iglob(str(pattern)))
        return
    depth = pattern.parts.index("**")
    for folder in glob.iglob(str(Path(*pattern.parts[:depth]))):
        for file in _walk(Path(folder)):
            if _matches(file.relative_to(folder).parts, pattern.parts[depth:]):
                yield file


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern, in both of which hidden names have to be spelt out."""
    if not pattern:
        return not names
    if pattern[0] == "**" and _matches(names, pattern[1:]):
        return True
    if not names or (names[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    if pattern[0] == "**":
        return _matches(names[1:], pattern)
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def _is_file(path: Path) -> bool:
    """True for a regular file, False for a folder; anything else is refused."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InputError(f"{path} is a link to a file that is not there; repair or remove it") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    refuse_special(path, mode)
    return stat.S_ISREG(mode)


def hash_file(path: Path) -> str:
    """A hexadecimal digest of the content (BLAKE2b, 128 bits), read as a stream."""
    with open_file(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def measure_files(files: Sequence[Place]) -> list[int]:
    """Their sizes in bytes."""
    return [(measure_object(file) or 0) if isinstance(file, StoreUrl) else file.stat().st_size for file in files]


def list_digests(files: Sequence[Place]) -> list[str]:
    """A digest of each file's content; of objects what their store says of it, without reading them."""
    versions = iter(read_versions([file for file in files if isinstance(file, StoreUrl)]))
    return [next(versions) if isinstance(file, StoreUrl) else hash_file(file) for file in files]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _known_suffixes() -> str:
    return f"known are {', '.join(FORMATS)}, each also with {', '.join(COMPRESSIONS)}"
