"""What importing costs, and what the source must never do."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import maskwright
from maskwright.text.tokenizer.tokenizer import Tokenizer

SOURCE = Path(maskwright.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"torch", "transformers", "pydantic", "numpy", "tokenizers", "rich", "yaml"}
_MODULES_AFTER_IMPORT = "import maskwright, json, sys; print(json.dumps(sorted(sys.modules)))"
_MODULES_AFTER_HELP = """
import json, sys
from maskwright.cli.app import main
sys.argv = ["maskwright", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print()
print(json.dumps(sorted(sys.modules)))
"""

_MODULES_AFTER_ANSWER = """
import json, sys
import maskwright
assert maskwright.pipeline("embed", {folder!r}, device="cpu")("a text").size
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert HEAVY.isdisjoint(modules_after(_MODULES_AFTER_IMPORT))


def test_help_does_not_wait_for_torch() -> None:
    assert {"torch", "transformers", "pydantic", "numpy"}.isdisjoint(modules_after(_MODULES_AFTER_HELP))


def test_a_model_answers_without_the_compiler(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Its import takes longer than reading a model and answering a text."""
    encoder = maskwright.BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, num_hidden_layers=1)
    model = maskwright.MaskedLanguageModel(encoder, tokenizer.vocab_size, tokenizer=tokenizer)
    model.save_pretrained(tmp_path / "model", tokenizer)
    loaded = modules_after(_MODULES_AFTER_ANSWER.format(folder=str(tmp_path / "model")))
    assert "torch" in loaded
    assert {"torch._dynamo", "torch._inductor", "sympy", "transformers"}.isdisjoint(loaded)


@functools.cache
def list_uses(path: Path) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    """Of a file, read once for all tests: its imports, and its calls with their lines and keywords."""
    return find_uses(path.read_text(encoding="utf-8"))


def find_uses(source: str) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    nodes = list(ast.walk(ast.parse(source)))
    return [*_imports(nodes)], [*_calls(nodes)]


def test_everything_is_printed_through_one_place() -> None:
    """So that control characters are cleaned there; rich's Console is what a caller may give."""
    printed = {"print", "Console", "typer.echo", "typer.secho", "click.echo"}
    calls = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in FILES
        if path.name != "terminal.py"
        for name, line, _ in list_uses(path)[1]
        if name in printed
    ]
    assert calls == []


@pytest.mark.parametrize("name", maskwright.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(maskwright, name) is not None
    assert name in dir(maskwright)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        maskwright.Bert  # noqa: B018


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _calls(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int, list[str]]]:
    """Calls by their dotted name, with their lines and the keywords given to them."""
    for node in nodes:
        if isinstance(node, ast.Call):
            yield _name(node.func), node.lineno, [f"keyword {keyword.arg}" for keyword in node.keywords]


def _name(called: ast.expr) -> str:
    """As `ast.unparse`, which is slow, of a name with dots."""
    if isinstance(called, ast.Name):
        return called.id
    if isinstance(called, ast.Attribute):
        return f"{_name(called.value)}.{called.attr}"
    return "(...)"


def forbidden_uses(imports: list[str], calls: list[tuple[str, int, list[str]]]) -> set[str]:
    """Ways to run code that a file brings with it."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "torch.load"}
    refused = {
        "torch.load",
        "eval",
        "exec",
        "compile",
        "yaml.unsafe_load",
        "yaml.full_load",
        "keyword trust_remote_code",
    }
    found = {word for name, _, keywords in calls for word in (name, *keywords)}
    return modules.intersection(imports) | refused.intersection(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_source_file_can_run_what_it_reads(path: Path) -> None:
    assert forbidden_uses(*list_uses(path)) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "exec('1')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "import yaml\nyaml.unsafe_load('x')",
    ],
)
def test_the_search_for_such_uses_finds_them(source: str) -> None:
    assert forbidden_uses(*find_uses(source))
    assert not forbidden_uses(*find_uses("model.eval()"))


def test_test_modules_do_not_import_each_other() -> None:
    """What several of them use is a fixture of a conftest.py, or a helper module without test_ in its name."""
    tests = Path(__file__).parent
    names = {path.stem for path in tests.rglob("test_*.py")}
    named = re.compile(rf"\b({'|'.join(names)})\b")
    imported = [
        f"{path.relative_to(tests)} imports {name}"
        for path in sorted(tests.rglob("*.py"))
        if named.search(path.read_text(encoding="utf-8"))  # parsing all of them takes seconds
        for name in list_uses(path)[0]
        if names.intersection(name.split("."))
    ]
    assert imported == []
