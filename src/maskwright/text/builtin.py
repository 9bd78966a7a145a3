"""The built-in corpus: the English documentation that every Python carries, read offline and never imported.

Sources are the language reference topics of `pydoc` and the docstrings of the standard library.
"""

from __future__ import annotations

import ast
import functools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from maskwright.errors import InputError

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data"}
_CODE_LINE = re.compile(r"\s*(\w[\w-]* +::=|\||[-=*~^+]{3,})")
_PROMPT = re.compile(r"^\s*(>>>|\.\.\.)(\s|$)", re.MULTILINE)
_HEADING = re.compile(r"^(?=\S[^\n]*\n[*=-]{3,}$)", re.MULTILINE)
_MIN_WORDS = 4


def read_python_documentation() -> list[str]:
    """One document per section of a topic or per docstring, a paragraph to a line; no paragraph occurs twice."""
    return list(_read_documents(Path(sysconfig.get_paths()["stdlib"])))


@functools.cache  # parsing takes seconds, and a run asks for the fingerprint and then for the texts
def _read_documents(stdlib: Path) -> tuple[str, ...]:
    seen: set[str] = set()
    documents = []
    for raw in _raw_documents(stdlib):
        paragraphs = [paragraph for paragraph in dict.fromkeys(_split_paragraphs(raw)) if paragraph not in seen]
        seen.update(paragraphs)
        if paragraphs:
            documents.append("\n".join(paragraphs))
    if not documents:
        raise InputError(f"this Python carries no documentation in {stdlib}; give a text file as data.train")
    return tuple(documents)


def _raw_documents(stdlib: Path) -> Iterator[str]:
    yield from _topics(stdlib / "pydoc_data" / "topics.py")
    for path in sorted(stdlib.rglob("*.py")):
        if not _SKIPPED_FOLDERS.intersection(path.relative_to(stdlib).parts):
            yield from _docstrings(path)


def _topics(path: Path) -> Iterator[str]:
    """The strings of the topics table, cut at their underlined headings."""
    for node in _walk(path):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if isinstance(value, ast.Constant):
                    yield from _HEADING.split(str(value.value))


def _docstrings(path: Path) -> Iterator[str]:
    for node in _walk(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring


def _walk(path: Path) -> Iterator[ast.AST]:
    """The syntax tree of a source file; of one that is absent or broken, as some systems ship, nothing."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return iter(())
    return ast.walk(tree)


def _split_paragraphs(raw: str) -> Iterator[str]:
    """Unwrapped paragraphs of prose; interpreter sessions, grammar, tables and rulers are left out."""
    for block in re.split(r"\n\s*\n", raw):
        prose = block[: prompt.start()] if (prompt := _PROMPT.search(block)) else block
        lines = [line for line in prose.splitlines() if not _CODE_LINE.match(line)]
        paragraph = " ".join(" ".join(lines).split())
        if len(re.findall(r"[A-Za-z]{2,}", paragraph)) >= _MIN_WORDS:
            yield paragraph
