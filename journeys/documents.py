"""The commands, snippets and settings that README.md, docs/*.md and the headers of recipes show."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from pathlib import Path

from maskwright.recipes import list_recipes

PROGRAMS = ("maskwright", "python", "torchrun", "make", "pip", "cat", "cp")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_COMMENT = re.compile(r"\s+#\s.*$")
_ERROR = "error: "


@dataclass(frozen=True)
class Documented:
    """Something to run, as it is printed."""

    kind: str
    """shell, python or yaml"""
    text: str
    place: str
    """File and line."""
    page: str
    before: tuple[str, ...] = ()
    """python, yaml: earlier snippets of the page. shell: earlier commands of the block."""
    is_refused: bool = False
    """The page shows that the command is answered with an error."""
    is_inline: bool = False


def list_documented(root: Path) -> list[Documented]:
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    found = [one for page in pages for one in read_page(page.read_text(encoding="utf-8"), str(page.relative_to(root)))]
    for recipe in list_recipes():
        place = f"recipes/{recipe.path.name}"
        found.append(Documented("shell", recipe.header["Command"], f"{place}:2", place))
    return found


def read_page(text: str, page: str) -> list[Documented]:
    """Commands, snippets and settings of fenced blocks, and commands in sentences, which begin with a program."""
    found: list[Documented] = []
    snippets: list[str] = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 2
        language, block = match.groups()
        if language in ("sh", "console", ""):
            found += read_block(block, page, line, is_session=language != "sh")
        elif language == "python":
            found.append(Documented("python", block, f"{page}:{line}", page, tuple(snippets)))
            snippets.append(block)
        elif language == "yaml":
            found.append(Documented("yaml", block, f"{page}:{line}", page))
    prose = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _INLINE.finditer(prose):
        command = " ".join(match[1].split())
        if command.split()[0] in PROGRAMS and " " in command:
            place = f"{page}:{prose.count(chr(10), 0, match.start()) + 1}"
            found.append(Documented("shell", command, place, page, is_inline=True))
    return found


def read_block(block: str, page: str, first_line: int, is_session: bool) -> list[Documented]:
    """Commands without their comments, continued lines joined; of a session those after a `$`."""
    found: list[Documented] = []
    lines = block.splitlines()
    number = 0
    while number < len(lines):
        place = f"{page}:{first_line + number}"
        text = lines[number]
        while text.endswith("\\") and number + 1 < len(lines):
            number += 1
            text = text[:-1].rstrip() + " " + lines[number].strip()
        number += 1
        command = _COMMENT.sub("", text.removeprefix("$ ")).strip()
        if is_session and not text.startswith("$ "):
            continue
        if not command or command.startswith("#"):
            continue
        is_refused = is_session and number < len(lines) and lines[number].startswith(_ERROR)
        before = tuple(one.text for one in found)
        found.append(Documented("shell", command, place, page, before, is_refused))
    return found


def list_unbound(snippet: str) -> set[str]:
    """Names that a snippet uses and neither assigns nor imports."""
    used, bound = set(), set(dir(builtins))
    for node in ast.walk(ast.parse(snippet)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return used - bound
