"""Blocks of README and docs say nothing that the code does not know; `make journeys` runs them."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shlex
from pathlib import Path

import pytest
import typer
import typer.core
import typer.main
import yaml
from journeys.documents import Documented, list_documented

from maskwright.cli.app import app, complete_keep_columns, complete_lora
from maskwright.config import build_config
from snippets import is_setting, list_mistakes

ROOT = Path(__file__).parents[1]
DOCUMENTED = list_documented(ROOT)
COMMANDS = [one for one in DOCUMENTED if one.kind == "shell" and re.match(r"(torchrun .*-m )?maskwright ", one.text)]
UsageError = typer.BadParameter.__base__
ENDS = {">", "|", "&&", ";", "&"}
"""Words of a shell after which another command begins."""


@functools.cache
def read_commands() -> typer.core.TyperGroup:
    """Typer reads the signatures of all commands each time."""
    return typer.main.get_command(app)


def list_words(command: str) -> list[str]:
    """What stands after `maskwright`, up to the end of that command."""
    words = shlex.split(re.sub(r"^torchrun .*-m (?=maskwright)", "", command))[1:]
    words = words[: next((place for place, word in enumerate(words) if word in ENDS), len(words))]
    return complete_lora(complete_keep_columns(words))


def parse(words: list[str]) -> None:
    """As the command line does before anything is run; a `UsageError` says what is wrong."""
    command, name, context = read_commands(), "maskwright", None
    with contextlib.suppress(typer.Exit):  # --version and the like answer at once
        while True:
            context = command.make_context(name, list(words), parent=context)
            if not hasattr(command, "resolve_command") or not context._protected_args:
                return
            name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


def is_whole(one: Documented) -> bool:
    """Not a form with places to fill in, and not a name in a sentence."""
    return not one.is_refused and not re.search(r"\.\.\.|\[-", one.text) and not one.is_inline


@pytest.mark.parametrize("one", [one for one in COMMANDS if is_whole(one)], ids=lambda one: one.place)
def test_the_words_of_a_command_are_understood(one: Documented) -> None:
    words = list_words(one.text)
    parse(words)
    assert [word for word in words if "=" in word and not is_setting(word.partition("=")[0])] == []


def test_a_command_with_an_unknown_option_is_found() -> None:
    for text in ("maskwright fill runs/mine 'a [MASK]' --top 3", "maskwright models chose", "maskwright predict"):
        with pytest.raises(UsageError):
            parse(list_words(text))


@pytest.mark.parametrize("one", [one for one in DOCUMENTED if one.kind == "python"], ids=lambda one: one.place)
def test_a_snippet_names_what_is_there(one: Documented) -> None:
    assert list_mistakes(one.text) == []


def test_mistakes_of_a_snippet_are_found() -> None:
    code = 'mw.tran("a")\nmw.train(None, {"training.max_step": 3, "hub.a": 1}, over=True)\nmw.BERT.from_varient("a")'
    assert sorted(list_mistakes(code)) == [
        "mw.train takes no over",
        "no mw.BERT.from_varient",
        "no mw.tran",
        "no setting training.max_step",
    ]


@pytest.mark.parametrize("one", [one for one in DOCUMENTED if one.kind == "yaml"], ids=lambda one: one.place)
def test_a_block_of_settings_is_a_configuration(one: Documented) -> None:
    build_config(yaml.safe_load(one.text) or {})


DOCKERFILES = re.findall(r"^```dockerfile\n(.*?)^```$", (ROOT / "docs/serving.md").read_text("utf-8"), re.DOTALL | re.M)


@pytest.mark.parametrize("text", DOCKERFILES, ids=lambda text: text.split()[1])
def test_a_container_serves_as_another_user_than_root_what_it_was_given(text: str) -> None:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    instructions = [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]
    last = dict(instructions)
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", last["FROM"])  # a version
    assert int(last["USER"]) > 0
    assert f"--uid {last['USER']} " in text
    assert [rest for word, rest in instructions if "pip install" in rest and "--constraint" not in rest] == []
    parse([*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])][1:])
    compile(json.loads(last["HEALTHCHECK"].removeprefix("CMD "))[2], "HEALTHCHECK", "exec")


def test_both_containers_are_checked() -> None:
    assert len(DOCKERFILES) == 2
