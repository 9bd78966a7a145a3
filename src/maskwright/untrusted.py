"""JSON from people we do not know: read as data, within bounds, or refused in one sentence."""

from __future__ import annotations

import json
import math
import reprlib
from pathlib import Path
from typing import Any, NoReturn

from maskwright.errors import InputError

ADVICE = "fetch or export the model again"
MAX_FILE_BYTES = 16 * 2**20
MAX_DEPTH = 64
"""Far above any real file, far below where Python's own recursion ends."""
MAX_SEPARATORS = 1_000_000
"""Each costs up to ~70 bytes once parsed; 100,000 tensors have as many."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shorten(value: object) -> str:
    """A value for an error message: escaped, and never longer than a line or two."""
    return _short.repr(value)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; never more than `MAX_FILE_BYTES` of it are read."""
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes, the most that is read of it; {ADVICE}")
    return parse_json_object(text, str(path))


def parse_json_object(text: bytes, source: str) -> dict[str, Any]:
    """An object without duplicate keys, NaN, infinities or deep nesting; `source` names it in refusals."""
    # counted before anything is parsed: `[],[],[],` takes 20 times its size in memory as Python lists
    if sum(map(text.count, (b"[", b"{", b","))) > MAX_SEPARATORS:
        raise InputError(f"{source} has more than {MAX_SEPARATORS:,} JSON values, the most that is read; {ADVICE}")
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_finite,
        )
    except RecursionError:
        raise _deep_nesting(source) from None
    except ValueError as error:
        # Python's refusal of integers of thousands of digits goes on with advice for programmers
        reason = str(error).split(";")[0]
        raise InputError(f"{source} is not valid JSON: {reason}; {ADVICE}") from error
    if not isinstance(value, dict):
        raise InputError(f"{source} holds a {type(value).__name__}, expected a JSON object; {ADVICE}")
    if _is_deeper(value, MAX_DEPTH):
        raise _deep_nesting(source)
    return value


def _deep_nesting(source: str) -> InputError:
    return InputError(f"{source} is nested more than {MAX_DEPTH} levels deep, the most that is read; {ADVICE}")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shorten(key)} occurs twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a float")
    return number


def _is_deeper(value: object, levels: int) -> bool:
    level: list[object] = [value]
    for _ in range(levels + 1):
        containers = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return False
    return True
