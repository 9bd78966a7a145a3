"""'Did you mean' for names people mistype, and 'use this instead' for those of other frameworks."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from maskwright.errors import InputError, check_count

_P = ParamSpec("_P")
_R = TypeVar("_R")


def name_option(setting: str, value: str = "") -> str:
    """What a setting is called on the command line and in Python; a flag of the former has a `value` in the latter."""
    return f"--{setting.replace('_', '-')} ({setting}={value} in Python)"


OUT = name_option("out")
OVERWRITE = name_option("overwrite", "True")


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


def explains_arguments(instead: Mapping[str, str]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """For a constructor: arguments that it does not take are answered as by `refuse_arguments`."""

    def decorate(constructor: Callable[_P, _R]) -> Callable[_P, _R]:
        known = inspect.signature(constructor).parameters

        @wraps(constructor)
        def call(*args: Any, **kwargs: Any) -> Any:
            others = {name: kwargs.pop(name) for name in [*kwargs] if name not in known}
            refuse_arguments(type(args[0]), others, instead)
            return constructor(*args, **kwargs)

        return call

    return decorate


def refuse_below(least: int, **arguments: int | None) -> None:
    """Refuse numbers that are too small; None is unset."""
    for name, value in arguments.items():
        if value is not None:
            check_count(name, value, least)
