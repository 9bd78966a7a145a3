"""'Did you mean' for names people mistype, and 'use this instead' for those of other frameworks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from maskwright.errors import InputError


def suggest(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or all of them."""
    names = sorted(known)
    return suggest_near(name, names) or f"; known are {', '.join(names)}"


def suggest_near(name: str, known: Iterable[str]) -> str:
    """The same, but empty where no known name is near."""
    near = difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def refuse_arguments(owner: Callable[..., Any], others: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    """An `InputError` for the first of `others`, arguments that a function or class does not take.

    `instead` has a sentence for those of other frameworks, which says what to use here; one of them that is switched
    off (0, False or None) asks for nothing and is let through.
    """
    for name, value in others.items():
        if name not in instead:
            parameters = inspect.signature(owner).parameters.values()
            known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"]
            raise InputError(f"{owner.__name__} has no argument '{name}'{suggest(name, known)}")
        if value:
            raise InputError(f"{owner.__name__} has no argument '{name}': {instead[name]}")
