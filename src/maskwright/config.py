"""The typed description of a run: YAML, `a.b=c` on the command line and Python use the same names."""

from __future__ import annotations

import json
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import Field, field_validator, model_validator

from maskwright.errors import InputError
from maskwright.recipes import read_recipe
from maskwright.sections.base import Section, read_value
from maskwright.sections.data import AugmentationConfig, DataConfig, QualityConfig, TokenizerConfig
from maskwright.sections.model import ModelConfig
from maskwright.sections.objective import (
    DiffusionConfig,
    DistillationConfig,
    ForgettingConfig,
    MaskingConfig,
    PairsConfig,
    PhaseConfig,
    ReplacedTokensConfig,
    check_phases,
)
from maskwright.sections.synonyms import find_spellings, translate
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.storage import dump_yaml, write_text
from maskwright.stores.addresses import parse_store
from maskwright.untrusted import read_yaml


class RunConfig(Section):
    name: str = Field(default="run", description="The run's folder is OUT/NAME.")
    out: str = Field(default="runs", description="The folder that holds runs.")
    store: str | None = Field(
        default=None,
        description="train: an object store that keeps a copy of the run, as STORE/NAME, and resumes it on any machine,"
        " such as s3://BUCKET/runs; unset: none.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of initial weights, data order, masks and dropout.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if re.fullmatch(r"\w[\w.-]*", name) is None:
            raise ValueError(
                "a run's folder has letters, digits, '_', '.' and '-' in its name and none of the last two first"
            )
        return name

    @model_validator(mode="after")
    def _check_store(self) -> RunConfig:
        """Not of the field alone, whose errors would repeat the credentials that an address must not have."""
        if self.store is not None:
            parse_store(self.store)
        return self


class Config(Section):
    """All settings of a run."""

    preset: str | None = Field(
        default=None, description="Name of a recipe; the settings given here override its values."
    )
    run: RunConfig = Field(default_factory=RunConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    quality: QualityConfig = Field(default_factory=QualityConfig)
    augmentation: AugmentationConfig = Field(default_factory=AugmentationConfig)
    masking: MaskingConfig = Field(default_factory=MaskingConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    replaced_tokens: ReplacedTokensConfig = Field(default_factory=ReplacedTokensConfig)
    diffusion: DiffusionConfig = Field(default_factory=DiffusionConfig)
    pairs: PairsConfig = Field(default_factory=PairsConfig)
    distillation: DistillationConfig = Field(default_factory=DistillationConfig)
    forgetting: ForgettingConfig = Field(default_factory=ForgettingConfig)
    objective: list[PhaseConfig] = Field(
        default_factory=list,
        description="Phases with an objective each, such as [{mode: clm, until: 0.25}, {mode: mlm}], a mask_ratio and a"
        " sampling_alpha; unset: training.mode throughout.",
    )

    _check_phases = field_validator("objective")(check_phases)

    @model_validator(mode="after")
    def _check_growing_batches(self) -> Config:
        start, length = self.training.batch_tokens_start, self.data.max_length
        if start is not None and start % length:
            raise ValueError(
                f"training.batch_tokens_start is {start}, not a multiple of data.max_length {length}; batches are rows"
            )
        return self

    @classmethod
    def from_preset(cls, name: str, overrides: Mapping[str, Any] | None = None) -> Config:
        """A recipe's values, with nested `overrides` on top."""
        if not isinstance(overrides, Mapping | None):
            raise InputError(
                f"overrides are {overrides!r}; expected a dictionary such as {{'training': {{'epochs': 5}}}}"
            )
        return build_config({**(overrides or {}), "preset": name})

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        below = _find_preset(values)
        return _merge(below, translate(values, below))

    @model_validator(mode="after")
    def _own_sections(self) -> Config:
        return self._own_training()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Config:
        return super().model_copy(update=update, deep=deep)._own_training()

    def __copy__(self) -> Config:
        return super().__copy__()._own_training()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Config:
        return super().__deepcopy__(memo)._own_training()

    def _own_training(self) -> Config:
        """`training.mlm_mask_prob` and the like act on this configuration; not assigned, that would come here again."""
        self.__dict__["training"] = self.training.owned_by(self)
        return self

    def save(self, path: str | Path) -> None:
        values = self.model_dump(by_alias=True)
        write_text(Path(path), dump_yaml(values))


def load_config(path: str | Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """A YAML file with `section.key=value` overrides on top; without a file, the quickstart."""
    if not isinstance(path, str | Path | None) or isinstance(overrides, str):
        raise InputError("load_config takes a YAML file and a list of overrides, such as ['training.epochs=5']")
    settings = _read_overrides(overrides)
    if path is None:
        return _build([{"preset": "quickstart"}, settings])
    values = _read_yaml(Path(path))
    try:
        return _build([values, settings])
    except InputError as error:
        raise InputError(f"{path}: {error}" if _find_mistake(values) == str(error) else str(error)) from None


def _find_mistake(values: Mapping[str, Any]) -> str | None:
    """The mistake in these values alone, if any."""
    try:
        _build([values])
    except InputError as error:
        return str(error)
    return None


Settings = Sequence[str] | Mapping[str, Any]
"""`section.key=value` words, or values by their dotted or nested keys."""


def open_config(given: Config | Mapping[str, Any] | str | Path | None = None, settings: Settings = ()) -> Config:
    """A configuration, its values, a YAML file or a recipe's name, with settings on top; nothing: the quickstart."""
    words = list_settings(settings)
    if isinstance(given, Config):
        return build_config(given.model_dump(by_alias=True), words) if words else given
    if isinstance(given, Mapping):
        return build_config(given, words)
    if given is None or Path(given).is_file():
        return load_config(given, words)
    read_recipe(str(given), "configuration file or recipe")
    return build_config({"preset": str(given)}, words)


def list_settings(settings: Settings) -> list[str]:
    """Settings as the words that a command line has."""
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={_write_value(value)}" for key, value in flatten(settings).items()]


def _write_value(value: Any) -> str:
    """Write a value as text that `read_value` reads back."""
    return str(value) if isinstance(value, str | PurePath) else json.dumps(value, default=str)


def build_config(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Check nested values, those of a recipe underneath them (`preset`) and `section.key=value` overrides on top."""
    return _build([values, _read_overrides(overrides)])


def change_config(config: Config, changes: Mapping[str, Mapping[str, Any]]) -> Config:
    """The configuration with some values replaced, validated again."""
    values = config.model_dump(by_alias=True)
    return build_config(values | {section: {**values[section], **named} for section, named in changes.items()})


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _build(layers: Sequence[Mapping[str, Any]]) -> Config:
    """Each layer's values win over those of the layers before it, and all of them over the recipe's."""
    below = _find_preset(ChainMap(*map(dict, reversed(layers))))
    asked: dict[str, Any] = {}
    for layer in layers:
        _check_characters(layer)
        _check_sections(layer)
        asked = _merge(asked, translate(layer, _merge(below, asked)))
    given = {name: value for name, value in asked.items() if value is not None}  # YAML's empty sections
    return Config.read(_merge(below, given), find_spellings(layers))


def _find_preset(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of the configured recipe; empty without one."""
    preset = values.get("preset")
    return {} if preset is None else read_recipe(str(preset), "preset")


def _check_characters(values: Mapping[str, Any]) -> None:
    """Refuse halves of surrogate pairs, which no file can hold; bytes of a file name that are no UTF-8 may stay."""
    for key, value in values.items():
        try:
            json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise InputError(
                f"configuration key '{key}' holds {half}, half of a character; write the whole character"
            ) from None
        except ValueError:
            raise InputError(f"configuration key '{key}' holds itself; write its values out") from None


def _check_sections(values: Mapping[str, Any]) -> None:
    """Refuse a section that is a plain value before the next layer's keys would hide it."""
    for name in Config.model_fields.keys() - {"preset", "objective"}:
        value = values.get(name)
        if not isinstance(value, Mapping | Section | None):
            raise InputError(f"configuration key '{name}' is {value!r}: expected a section with keys of its own")


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"no configuration file at {path}")
    values = read_yaml(path)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; expected sections such as 'data:' and 'training:'")
    return values


def _read_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for override in overrides:
        _apply_override(values, override)
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise InputError(f"'{override}' is not an override; write section.key=value, such as training.epochs=5")
    *sections, name = key.split(".")
    target = values
    for section in sections:
        if target.get(section) is None:
            target[section] = {}
        target = target[section]
        if not isinstance(target, dict):
            raise InputError(f"'{override}': {section} is not a section of the configuration")
    target[name] = read_value(text)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged
