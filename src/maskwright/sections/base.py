"""What every section of the configuration has: strict names, and errors that say what would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from maskwright.suggestions import suggest


class Section(BaseModel):
    """A group of settings; unknown names are errors, and assignments are checked like the constructor's arguments."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, populate_by_name=True, allow_inf_nan=False)
    other_names: ClassVar[tuple[str, ...]] = ()
    """Names that stand for settings, here or in another section."""

    @field_validator("*", mode="before")
    @classmethod
    def _spell_path(cls, value: Any) -> Any:
        """Settings name files by strings, as YAML does; a `Path` is as good."""
        return str(value) if isinstance(value, PurePath) else value


def read_value(text: str) -> Any:
    """Lists, mappings and null are read as YAML; anything else stays text, since each field knows its own type."""
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if value is None or isinstance(value, list | dict) else text


def explain(error: ValidationError, root: type[Section], spellings: Mapping[str, str] | None = None) -> str:
    """The first problem, a mistyped name before others, with the dotted key, the value found and what would do.

    `spellings` are the keys that were written under another name.
    """
    problem = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        *sections, name = problem["loc"]
        return f"unknown configuration key '{key}'{suggest(str(name), _known_keys(sections, root))}"
    message = problem["msg"].removeprefix("Value error, ")
    key = (spellings or {}).get(key, key)
    return f"configuration key '{key}' is {problem['input']!r}: {message}" if key else message


def _known_keys(sections: Sequence[int | str], root: type[Section]) -> list[str]:
    section = root
    for name in sections:
        if isinstance(name, int):  # a place in a list of sections
            continue
        annotation: Any = section.model_fields[name].annotation
        annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, Section)
        section = annotation
    return [*(field.alias or name for name, field in section.model_fields.items()), *section.other_names]
