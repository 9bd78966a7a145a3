"""Values of unknown origin as text that neither breaks Markdown nor adds to it."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

_MARKUP = re.compile(r"([\\`*_\[\]|~$#!])")


def escape(value: Any) -> str:
    """One line of plain text: no markup, no HTML, nothing invisible."""
    line = " ".join(str(value).split())
    visible = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return _MARKUP.sub(r"\\\1", html.escape(visible, quote=False))


def build_table(rows: Mapping[str, Any], heading: tuple[str, str]) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "| --- | --- |"]
    lines += [f"| {escape(label)} | {escape(value)} |" for label, value in rows.items()]
    return "\n".join(lines)
