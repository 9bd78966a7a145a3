"""The base of all sections of the configuration: strict names, and errors that say what is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from maskwright.errors import InputError
from maskwright.suggestions import suggest, suggest_near
from maskwright.untrusted import parse_yaml, shorten

FOREIGN_NAMES = {
    "lr": "optimizer.learning_rate",
    "betas": "optimizer.beta1 and optimizer.beta2",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.epsilon",
    "eps": "optimizer.epsilon",
    "optim": "optimizer.type",
    "clipnorm": "optimizer.gradient_clipping_by_norm",
    "global_clipnorm": "optimizer.gradient_clipping_by_norm",
    "max_grad_norm": "optimizer.gradient_clipping_by_norm",
    "lr_scheduler_type": "schedule.type",
    "warmup_ratio": "schedule.warmup_share",
    "num_train_epochs": "training.epochs",
    "num_epochs": "training.epochs",
    "train_batch_size": "training.batch_tokens, which counts tokens",
    "batch_size": "training.batch_tokens, which counts tokens",
    "per_device_train_batch_size": "training.batch_tokens, the tokens of a step over all devices",
    "gradient_accumulation_steps": "training.micro_batch_tokens, the tokens of a step that are in memory at a time",
    "gradient_checkpointing": "training.activation_checkpointing",
    "bf16": "training.precision=bf16",
    "fp16": "training.precision=fp16",
    "torch_compile": "training.compile",
    "logging_steps": "training.log_every_steps",
    "save_steps": "training.checkpoint_every_steps",
    "save_total_limit": "training.keep_checkpoints",
    "load_best_model_at_end": "training.early_stopping_patience, which goes back to the best",
    "report_to": "training.log_to",
    "output_dir": "run.out and run.name",
    "mlm_probability": "masking.ratio",
    "max_seq_length": "data.max_length",
    "seed": "run.seed",
}
"""Settings of other frameworks, with our keys."""
_UNKNOWN_NAME = ("extra_forbidden", "no_such_attribute")
_WHOLE_NUMBER = dict.fromkeys(
    ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number, such as 3"
)
_EXPECTATIONS = {
    **_WHOLE_NUMBER,
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "list_type": "a list, such as [a, b]",
    "model_type": "a section with keys of its own",
    "model_attributes_type": "a section with keys of its own",
    "literal_error": "{expected}",
    "greater_than": "a value greater than {gt:g}",
    "greater_than_equal": "a value greater than or equal to {ge:g}",
    "less_than": "a value less than {lt:g}",
    "less_than_equal": "a value less than or equal to {le:g}",
}
"""What is expected, by pydantic's error type; fields in braces come from its context."""


class Section(BaseModel):
    """A group of settings; unknown names are errors, and assignments are checked like the constructor's arguments.

    A wrong value raises an `InputError` that says what is expected.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True, populate_by_name=True, allow_inf_nan=False)
    other_names: ClassVar[tuple[str, ...]] = ()
    """Names that stand for settings, here or in another section."""

    @field_validator("*", mode="before")
    @classmethod
    def _spell_path(cls, value: Any) -> Any:
        """Settings name files by strings, as YAML does; a `Path` is accepted too."""
        return str(value) if isinstance(value, PurePath) else value

    if not TYPE_CHECKING:  # a type checker knows the arguments of each section

        def __init__(self, *args: Any, **values: Any) -> None:
            if args:
                raise InputError(
                    f"{type(self).__name__} takes its settings by name, such as {_show_example(type(self))}"
                )
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise InputError(explain(error, type(self))) from None

        # Sections inside a section are then built as usual, and the outermost explains what is wrong in them.
        __init__.__pydantic_base_init__ = True

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise InputError(explain(error, type(self))) from None

    @classmethod
    def read(cls, values: Mapping[str, Any], spellings: Mapping[str, str] | None = None) -> Self:
        """The section with these values, nested ones included; `spellings` are as in `explain`."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InputError(explain(error, cls, spellings)) from None


def read_value(text: str) -> Any:
    """Lists, mappings and null are read as YAML; anything else stays text, since each field knows its own type."""
    try:
        value = parse_yaml(text, f"the value {shorten(text)}")
    except yaml.YAMLError:
        return text
    return value if value is None or isinstance(value, list | dict) else text


def explain(error: ValidationError, root: type[Section], spellings: Mapping[str, str] | None = None) -> str:
    """The first problem (misspelt names first), with the dotted key, the value found and what is expected.

    `spellings` are the keys that were written under another name.
    """
    problem: Mapping[str, Any] = min(error.errors(), key=lambda one: one["type"] not in _UNKNOWN_NAME)
    kind, value = problem["type"], problem["input"]
    places, section = _follow(problem["loc"], root)
    key = ".".join(map(str, places))
    if kind in _UNKNOWN_NAME:
        return f"unknown configuration key '{key}'{_suggest_key(str(places[-1]), section)}"
    key = (spellings or {}).get(key, key)
    if kind == "missing":
        return f"configuration key '{key}' is missing{_describe_field(section, places)}"
    if kind in ("value_error", "assertion_error"):
        message = str(problem["ctx"]["error"])
        return message if not key or isinstance(value, Mapping | Section) else _state(key, value, message)
    context = problem.get("ctx", {})
    expected = _EXPECTATIONS.get(kind, "another kind of value").format(**context)
    near = ""
    if kind == "literal_error" and isinstance(value, str):
        near = suggest_near(value, _read_choices(context["expected"]))
    return _state(key, value, f"expected {expected}{near}")


def _state(key: str, value: Any, message: str) -> str:
    shown = repr(value)
    return f"configuration key '{key}' is {shown if len(shown) <= 120 else shown[:117] + '...'}: {message}"


def _read_choices(expected: str) -> list[str]:
    """The names in pydantic's "'a', 'b' or 'c'"."""
    return expected.split("'")[1::2]


def _follow(loc: Sequence[int | str], root: type[Section]) -> tuple[list[int | str], type[Section]]:
    """The keys of a problem's place, without the kinds of a union that pydantic puts there, and their section."""
    places: list[int | str] = []
    section = root
    inner: type[Section] | None = root
    for part in loc:
        if isinstance(part, str) and inner is None:
            break
        places.append(part)
        if isinstance(part, int):
            continue
        assert inner is not None
        section, inner = inner, _find_section(inner, part)
    return places, section


def _find_section(section: type[Section], name: str) -> type[Section] | None:
    """The section under a key, or that of a list's items."""
    field = _fields_by_key(section).get(name)
    annotation: Any = None if field is None else field.annotation
    annotation = get_args(annotation)[0] if get_origin(annotation) is list else annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _fields_by_key(section: type[Section]) -> dict[str, Any]:
    fields = section.model_fields
    return {**fields, **{field.alias: field for field in fields.values() if field.alias}}


def _describe_field(section: type[Section], places: Sequence[int | str]) -> str:
    """The description of a setting."""
    names = [place for place in places if isinstance(place, str)]
    field = _fields_by_key(section).get(names[-1]) if names else None
    return f" ({field.description.rstrip('.')})" if field is not None and field.description else ""


def _suggest_key(name: str, section: type[Section]) -> str:
    if name in FOREIGN_NAMES:
        return f"; use {FOREIGN_NAMES[name]}"
    return suggest(name, [*(field.alias or key for key, field in section.model_fields.items()), *section.other_names])


def _show_example(section: type[Section]) -> str:
    name = next(iter(section.model_fields))
    return f"{section.__name__}({name}=...)"
