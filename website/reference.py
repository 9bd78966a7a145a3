"""Reference pages made of the code: commands, settings, and the names of `import maskwright`."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_args

import typer.main
from pydantic_core import PydanticUndefined

import maskwright
from maskwright.cli.app import app
from maskwright.cli.usage import write_argument
from maskwright.config import Config
from maskwright.sections.base import Section

API_PAGES = {
    "commands": ("Commands as functions", ("runs", "serving", "catalogue", "cluster")),
    "models": ("Models and objectives", ("models", "objectives")),
    "data": ("Texts and data", ("text", "data", "batch")),
    "training": ("Training", ("training",)),
    "tasks": ("Tasks", ("tasks",)),
    "inference": ("Inference and evaluation", ("inference", "evaluation")),
    "configuration": ("Configuration and errors", ("config", "sections", "errors")),
}
"""Each page's title, and the parts of the package whose names it shows."""


def write_api_page(page: str) -> str:
    title, parts = API_PAGES[page]
    homes = {name: home for name, home in maskwright._HOMES.items() if home.split(".")[1] in parts}
    names = sorted(homes, key=str.lower)
    listed = ", ".join(f"[`{name}`](#{homes[name]}.{name})" for name in names)
    lead = f"Names of `import maskwright as mw`: {listed}."
    return "\n\n".join([f"# {title}", lead, *(f"::: {homes[name]}.{name}" for name in names), ""])


def write_settings() -> str:
    """A table for each section of the configuration."""
    lines = [
        "# Settings",
        "",
        "Every setting of `maskwright train`, with its default. Settings have the same names in YAML, as `a.b=c` on",
        "the command line and in Python. `maskwright adapt`, `distill` and `finetune` take them too, where they apply.",
    ]
    lone = {}
    for name, field in Config.model_fields.items():
        section = find_section(field.annotation)
        if section is None:
            lone[name] = field
        else:
            lines += ["", f"## {name}", "", *write_fields(section.model_fields, f"{name}.")]
    return "\n".join([*lines, "", "## Outside of sections", "", *write_fields(lone, ""), ""])


def write_fields(fields: dict[str, Any], prefix: str) -> list[str]:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        shown = f"`{prefix}{field.alias or name}`"
        rows.append(f"| {shown} | {describe_default(field)} | {describe_choices(field)} |")
    return rows


def describe_default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "" if field.default_factory is None else f"`{field.default_factory()}`"
    if field.default is None:
        return "unset"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def describe_choices(field: Any) -> str:
    words = escape(field.description or "")
    choices = [one for one in list_arguments(field.annotation) if isinstance(one, str)]
    return f"{words} One of {', '.join(f'`{one}`' for one in choices)}." if choices else words


def list_arguments(annotation: Any) -> list[Any]:
    found = []
    for one in get_args(annotation):
        found += [one] if isinstance(one, str) else list_arguments(one)
    return found


def find_section(annotation: Any) -> type[Section] | None:
    """The section that a field holds; None for a plain value or a list."""
    choices = [annotation, *get_args(annotation)]
    return next((one for one in choices if inspect.isclass(one) and issubclass(one, Section)), None)


def write_commands() -> str:
    """Usage, text and options of each command, which `--help` shows too."""
    lines = ["# Commands", "", "What `maskwright COMMAND --help` says, for each command."]
    for path, command in list_commands(typer.main.get_command(app), "maskwright"):
        shown = [one for one in command.params if not one.hidden]
        words = " ".join(command.collect_usage_pieces(command.make_context(path, [], resilient_parsing=True)))
        lines += ["", f"## {path}", "", "```", f"{path} {words}", "```", "", write_help(command.help or "")]
        if shown:
            lines += ["", *write_options(shown)]
    return "\n".join([*lines, ""])


def list_commands(command: Any, path: str) -> list[tuple[str, Any]]:
    """Those that do something, by their words."""
    if not hasattr(command, "commands"):
        return [(path, command)]
    own = [(path, command)] if command.invoke_without_command and path != "maskwright" else []
    return own + [one for name, inside in command.commands.items() for one in list_commands(inside, f"{path} {name}")]


def write_help(text: str) -> str:
    """Examples as a block of commands; they stand indented in the help."""
    text = inspect.cleandoc(text)
    text = re.sub(r"\n\n(?=    )", "\n", text)
    return re.sub(r"\n((?:    .*\n?)+)", lambda block: f"\n\n```sh\n{inspect.cleandoc(block[1])}\n```\n", text)


def is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def write_options(parameters: list[Any]) -> list[str]:
    """A table, without the column of defaults if there are none."""
    defaults = [write_default(one) for one in parameters]
    has_defaults = any(defaults)
    lines = (
        ["| option | default | meaning |", "|---|---|---|"] if has_defaults else ["| option | meaning |", "|---|---|"]
    )
    for parameter, default in zip(parameters, defaults, strict=True):
        if is_argument(parameter):
            names = f"<code>{write_argument(parameter).replace('|', '&#124;')}</code>"
        else:
            names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
        middle = f" {default} |" if has_defaults else ""
        lines.append(f"| {names} |{middle} {escape(parameter.help or '')} |")
    return lines


def write_default(parameter: Any) -> str:
    default = parameter.default
    if is_argument(parameter) or default is None or default is False or callable(default):
        return ""
    return f"`{escape(str(default))}`"


def escape(text: str) -> str:
    """As a cell of a table, whose columns bars part."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
