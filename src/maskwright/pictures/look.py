"""The look of what is shown in a browser: whole pages, and HTML in the output of a notebook's cell."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_CHARTS = "/* Charts"
"""Where the rules of charts begin in the style sheet; they are its last part."""
_CELL = """
  --ink: var(--jp-ui-font-color1, inherit); --soft: var(--jp-ui-font-color2, #767d87); --card: transparent;
  --line: rgba(128, 128, 128, .35); --grid: rgba(128, 128, 128, .25); --sans: inherit;
  table { border-collapse: collapse; margin: .3rem 0 }
  th, td { text-align: left !important; padding: .15rem .9rem .15rem 0 }
  th { font-weight: 600; vertical-align: top } caption { text-align: left; font-weight: 600; padding: 0 0 .2rem }
  .share { display: inline-block; height: .6em; background: var(--hue-0); border-radius: 2px }
  .track { height: .45rem; border-radius: 4px; background: var(--grid); margin: .3rem 0 }
  .track div { height: 100%; border-radius: 4px; background: var(--hue-0) }
"""
"""Colours that suit a notebook's own, light or dark."""


@cache
def read_look() -> str:
    """The style sheet of everything that is shown in a browser."""
    return files("maskwright").joinpath("serving", "page", "look.css").read_text(encoding="utf-8")


def frame_cell(body: str) -> str:
    """HTML for the output of a notebook's cell, whose style touches nothing beside it."""
    look = read_look()
    hues = " ".join(re.findall(r"--hue-\d: #\w+;", look.partition("@media")[0]))
    charts = look[look.index(_CHARTS) :]
    return f'<div class="maskwright"><style>.maskwright {{ {hues} {_CELL} {charts} }}</style>{body}</div>'


def build_facts(title: str, facts: Mapping[str, str]) -> str:
    """A small table of names and values."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"
