"""What is wrong with a piece of documented Python, as far as can be told without running it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import maskwright
from maskwright.config import Config

_SETTING = re.compile(r"([a-z]+)\.(?!(?:csv|json|jsonl|parquet|tsv|txt|yaml)$)([a-z_]+)")
"""A section and its setting; not the name of a file."""


def list_mistakes(code: str) -> list[str]:
    """Names of `mw` that are not there, arguments that they do not take, and unknown settings."""
    nodes = list(ast.walk(ast.parse(code)))
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    unknown = [f"no setting {word}" for word in sorted(words) if not is_setting(word)]
    return [*(mistake for node in nodes for mistake in _check(node)), *unknown]


def is_setting(word: str) -> bool:
    """False for a dotted name in a section of the configuration that has no such setting; true for all other words."""
    match = _SETTING.fullmatch(word)
    section = Config.model_fields.get(match[1]) if match else None
    if match is None or section is None or not hasattr(section.annotation, "model_fields"):
        return True
    fields = section.annotation.model_fields
    return match[2] in {name for key, field in fields.items() for name in (key, field.alias)}


def _check(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and find_ours(node) is None and _begins_with_ours(node):
        yield f"no {ast.unparse(node)}"
    if isinstance(node, ast.Call) and (called := find_ours(node.func)) is not None:
        parameters = inspect.signature(called).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            yield from (
                f"{ast.unparse(node.func)} takes no {one.arg}"
                for one in node.keywords
                if one.arg is not None and one.arg not in parameters
            )


def find_ours(node: ast.expr) -> Any:
    """What `mw.NAME` or `mw.NAME.PART` is; None for anything else."""
    path = ast.unparse(node).split(".") if _begins_with_ours(node) else []
    found: Any = maskwright if path else None
    for part in path[1:]:
        found = getattr(found, part, None)
    return found


def _begins_with_ours(node: ast.expr) -> bool:
    return re.fullmatch(r"mw(\.\w+)+", ast.unparse(node)) is not None
