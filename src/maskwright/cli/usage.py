"""The line of `--help` that says how a command is typed: MODEL must be given, [FILES...] may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand


class Commands(typer.Typer):
    """A Typer whose commands have such a line."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": PlainCommand, **options})


class PlainCommand(TyperCommand):
    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [
            one for one in self.params if one.param_type_name == "argument" and not getattr(one, "hidden", False)
        ]
        return ["[OPTIONS]", *(write_argument(one) for one in arguments)]


def write_argument(parameter: Any) -> str:
    """Its own `metavar`, where it has one, says itself what may be left out."""
    if parameter.metavar:
        return str(parameter.metavar)
    word = f"{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"
    return word if parameter.required else f"[{word}]"
