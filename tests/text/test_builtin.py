from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maskwright.errors import InputError
from maskwright.text import sources

_READ_AND_LIST_MODULES = """
import json, sys
from maskwright.text.sources import read_python_documentation
documents = read_python_documentation()
json.dump({"documents": documents, "modules": sorted(sys.modules)}, sys.stdout)
"""

_DOCSTRING = '''"""A title of many words
=====================

Prose that goes
over two lines.

This is how it is called:
    >>> answer("some question of many words")
    an answer of several words

    ...
    Traceback (most recent call last): and so on

statement ::= expression and other words of grammar
| a table with many words | in its many cells |
"""
'''


@pytest.fixture(scope="module")
def reading() -> dict[str, list[str]]:
    """The corpus as a fresh interpreter reads it, and the modules it had imported by then."""
    done = subprocess.run([sys.executable, "-c", _READ_AND_LIST_MODULES], capture_output=True, check=True)
    assert done.stderr == b""
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_no_paragraph_occurs_twice(reading: dict[str, list[str]]) -> None:
    paragraphs = [paragraph for document in reading["documents"] for paragraph in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs))


@pytest.mark.slow
def test_the_corpus_is_megabytes_of_prose_with_the_for_statement(reading: dict[str, list[str]]) -> None:
    assert sum(map(len, reading["documents"])) > 1_500_000
    assert any('The "for" statement is used to iterate over' in document for document in reading["documents"])


@pytest.mark.slow
def test_reading_imports_none_of_the_modules_read(reading: dict[str, list[str]]) -> None:
    assert {"antigravity", "this", "idlelib", "turtle", "pydoc_data.topics"}.isdisjoint(reading["modules"])


def _use_stdlib(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(folder)})


def test_a_few_modules_are_read_once_and_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the whole library above."""
    names = ("antigravity.py", "bisect.py", "textwrap.py", "turtle.py", "pydoc_data/topics.py")
    for place in (tmp_path, tmp_path / "again"):
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(os.__file__).parent / name, place / name)
    _use_stdlib(monkeypatch, tmp_path)
    before = {*sys.modules}
    documents = sources.read_python_documentation()
    paragraphs = [paragraph for document in documents for paragraph in document.split("\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 100
    assert any('The "for" statement is used to iterate over' in document for document in documents)
    assert {"antigravity", "turtle", "pydoc_data.topics"}.isdisjoint({*sys.modules} - before)


def test_broken_sources_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "good.py").write_text('"""A module that says something useful."""\n')
    _use_stdlib(monkeypatch, tmp_path)
    assert sources.read_python_documentation() == ["A module that says something useful."]


def test_sessions_grammar_and_rulers_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(_DOCSTRING)
    _use_stdlib(monkeypatch, tmp_path)
    assert sources.read_python_documentation() == [
        "A title of many words\nProse that goes over two lines.\nThis is how it is called:"
    ]


def test_a_python_without_documentation_is_said_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _use_stdlib(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"no documentation .*give a text file as data\.train"):
        sources.read_python_documentation()
