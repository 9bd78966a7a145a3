"""'Did you mean' for names people mistype, the names of arguments among them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from maskwright.errors import InputError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def suggest(name: str, known: Iterable[str]) -> str:
    """The tail of an error message: the nearest known name, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(names)}"


def checks_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Answer arguments that a function does not take, or lacks, with an `InputError`, as a command line does."""
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in signature.parameters:
                raise InputError(f"{function.__name__} has no argument '{name}'{suggest(name, signature.parameters)}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"{function.__name__}: {error}; it takes {', '.join(signature.parameters)}") from error
        return function(*args, **kwargs)

    return call


def refuse_below(least: int, **arguments: int | None) -> None:
    """Refuse numbers that are too small; None is unset."""
    for name, value in arguments.items():
        if value is not None and value < least:
            raise InputError(f"{name} is {value}; it must be at least {least}")
