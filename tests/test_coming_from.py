"""Every name of ours in docs/coming-from.md exists, with the arguments it is shown with."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer

import maskwright as mw
from maskwright.cli.app import app
from maskwright.config import Config
from maskwright.inference.kinds import HABITS, OPTIONS, RECIPES
from maskwright.recipes import list_recipes

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"


def list_names() -> list[str]:
    """Code in the last column of the page's tables."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return list(dict.fromkeys(code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[-1])))


def check_attribute(code: str) -> None:
    path, _, arguments = code.removeprefix("mw.").partition("(")
    found: Any = mw
    for name in path.split("."):
        assert hasattr(found, name), f"{code}: {found} has no {name}"
        found = getattr(found, name)
    for argument in re.findall(r"(\w+)=", arguments):
        assert argument in list_arguments(found), f"{code}: no argument {argument}"


def list_arguments(taker: Any) -> set[str]:
    """Named ones; of a function that takes any, those that it knows."""
    known = set(inspect.signature(taker).parameters) - {"options", "others", "overrides"}
    if taker is mw.Trainer:
        known |= set(inspect.signature(taker.__mro__[1]).parameters)
    if taker is mw.pipeline:
        known |= {*OPTIONS, *(option for recipe in RECIPES.values() for option in recipe.options)}
    if taker == mw.BERT.from_variant:
        known |= {field.name for field in dataclasses.fields(mw.BertConfig)}
    return known


@functools.cache
def read_app() -> Any:
    return typer.main.get_command(app)


def check_command(code: str) -> None:
    command = read_app()
    words = code.split()[1:]
    for word in [word for word in words if not word.startswith("--")]:
        assert word in command.commands, f"{code}: no command {word}"
        command = command.commands[word]
    known = [option for parameter in command.params for option in parameter.opts]
    for option in [word for word in words if word.startswith("--")]:
        assert option in known, f"{code}: no option {option}"


def check_key(code: str) -> None:
    section, _, name = code.partition(".")
    fields = Config.model_fields[section].annotation.model_fields
    assert name in {field.alias or key for key, field in fields.items()}, f"{code} is no setting"


@pytest.mark.parametrize("code", list_names())
def test_a_name_on_the_page_exists(code: str) -> None:
    if code.startswith("mw."):
        check_attribute(code)
    elif code.startswith("maskwright "):
        check_command(code)
    elif re.fullmatch(r"\w+\.\w+", code):
        check_key(code)
    else:
        others = ("[MASK]", "<mask>", "torchrun", "training", ".keras")
        assert code in (*HABITS, *(recipe.name for recipe in list_recipes()), *others), code


def test_the_page_has_every_kind_of_name_and_readme_links_it() -> None:
    names = list_names()
    assert len([name for name in names if name.startswith("mw.")]) > 50
    assert len([name for name in names if name.startswith("maskwright ")]) > 8
    assert "docs/coming-from.md" in (PAGE.parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", ["mw.Trainr", "mw.EarlyStopping(patince=)", "maskwright trian", "training.epoch"])
def test_a_name_that_does_not_exist_would_be_found(code: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        test_a_name_on_the_page_exists(code)
