"""`import maskwright as mw` as type checkers and editors see it."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import maskwright
from maskwright.training import trainer

PROGRAM = Path(__file__).parent / "typing" / "program.py"
ROOT = Path(__file__).parents[1]
CHECKERS = {
    "mypy": ["-m", "mypy", "--no-error-summary"],
    "pyright": ["-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable],
}


def test_type_checkers_see_the_names_that_are_imported_lazily() -> None:
    tree = ast.parse(Path(maskwright.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        name.asname: node.module
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.name == name.asname
    }
    assert seen == maskwright._HOMES


def find_imports(file: str) -> dict[str, str]:
    """The names that a module takes from others of ours, also those for type checkers alone."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module is not None and node.module.startswith("maskwright")]
    return {name.name: str(node.module) for node in ours for name in node.names}


@pytest.mark.parametrize("name", [name for name in maskwright.__all__ if inspect.isfunction(getattr(maskwright, name))])
def test_the_classes_that_a_public_function_takes_and_returns_are_public(name: str) -> None:
    function = inspect.unwrap(getattr(maskwright, name))
    imports = find_imports(inspect.getfile(function))
    words = {
        node.id
        for annotation in function.__annotations__.values()
        for node in ast.walk(ast.parse(annotation))
        if isinstance(node, ast.Name)
    }
    found = {word: getattr(import_module(imports[word]), word) for word in words & imports.keys()}
    found |= {word: one for word, one in vars(import_module(function.__module__)).items() if word in words}
    classes = {word for word, one in found.items() if isinstance(one, type) and one.__module__.startswith("maskwright")}
    assert classes <= set(maskwright.__all__)


def test_the_trainer_of_a_model_is_typed_as_the_trainer_beneath_it() -> None:
    front, beneath = (inspect.signature(one.__init__) for one in (maskwright.Trainer, trainer.Trainer))
    assert front.parameters["model"].annotation == "Objective | Config"
    parameters = {**front.parameters, "model": beneath.parameters["model"]}
    assert front.replace(parameters=list(parameters.values())) == beneath


@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=pytest.mark.slow)])
def test_a_users_program_has_the_mistakes_that_are_marked_in_it_and_no_others(checker: str) -> None:
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, start=1) if "# wrong" in line}
    checked = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(PROGRAM)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    found = {int(line.split("program.py:")[1].split(":")[0]) for line in errors}
    assert found == expected, checked.stdout + checked.stderr
