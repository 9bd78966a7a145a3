"""The table of known models, models.toml: a model by a name people use, the code that loads it, and its memory."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from maskwright.errors import InputError
from maskwright.suggestions import suggest

GENERAL = "general"
ENGLISH = ("en",)
ACCURACY = "MNLI-m"
"""The score that most models have, and so the one they are compared by."""


@dataclass(frozen=True)
class Score:
    name: str
    value: float
    source: str


@dataclass(frozen=True)
class KnownModel:
    """One row of the table; what the columns mean is said at the head of models.toml."""

    id: str
    aliases: tuple[str, ...]
    family: str
    model_type: str
    parameters: int
    counted: int
    layers: int
    width: int
    context: int
    languages: tuple[str, ...]
    loads: str
    scores: tuple[Score, ...] = ()
    domain: str = GENERAL
    license: str | None = None
    has_mlm_head: bool = True
    needs_conversion: bool = False

    @property
    def accuracy(self) -> float | None:
        return self.find_score(ACCURACY)

    def find_score(self, name: str) -> float | None:
        return next((score.value for score in self.scores if score.name == name), None)

    @property
    def cost(self) -> int:
        """What a token costs in the layers, up to a factor: each is a few matrices of width times width."""
        return self.layers * self.width**2


@dataclass(frozen=True)
class Leaf:
    """An end of the decision tree: why one gets there, and its families from first choice on."""

    why: str
    families: tuple[str, ...]
    when_fastest: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Table:
    models: tuple[KnownModel, ...]
    leaves: Mapping[str, Leaf]
    tasks: Mapping[str, str]
    """The score that models are compared by for each task."""

    def find(self, name: str) -> KnownModel | None:
        """Find a model by hub id or alias, ignoring case."""
        wanted = name.casefold()
        return next((model for model in self.models if wanted in _names(model)), None)

    def get(self, name: str) -> KnownModel:
        """As `find`, but an unknown name is an error with a suggestion."""
        model = self.find(name)
        if model is None:
            raise InputError(f"no known model is called '{name}'{self.suggest(name)}")
        return model

    def suggest(self, name: str) -> str:
        """The tail of an error message about an unknown name; all names would be too many to read."""
        tail = suggest(name, [alias for model in self.models for alias in model.aliases])
        return tail if "did you mean" in tail else "; maskwright models list shows those that are known"

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model.domain for model in self.models if model.domain != GENERAL))


@cache
def read_table() -> Table:
    text = files("maskwright.catalogue").joinpath("models.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    models = tuple(_build_model(row, values["languages"], values["sources"]) for row in values["models"])
    return Table(models, {name: _build_leaf(leaf) for name, leaf in values["leaves"].items()}, values["tasks"])


def _build_model(row: dict[str, Any], languages: Mapping[str, str], sources: Mapping[str, str]) -> KnownModel:
    codes = {code for name in row["languages"] for code in languages[name].split()}
    scores = [
        Score(name, value, sources[source])
        for source, values in row.get("scores", {}).items()
        for name, value in values.items()
    ]
    parts = {"aliases": tuple(row["aliases"]), "languages": tuple(sorted(codes)), "scores": tuple(scores)}
    return KnownModel(**row | parts)


def _build_leaf(values: dict[str, Any]) -> Leaf:
    fastest = values.get("when_fastest")
    return Leaf(values["why"], tuple(values["families"]), None if fastest is None else tuple(fastest))


def _names(model: KnownModel) -> set[str]:
    return {name.casefold() for name in (model.id, *model.aliases)}


_FILES = {"ner": ("train.conll", "dev.conll"), "qa": ("train-v2.0.json", "dev-v2.0.json")}
_USUAL_TASK, _USUAL_FILES = "classification", ("train.csv", "dev.csv")
_CONVERT = (
    "import sys; from transformers import AutoModel as M, AutoTokenizer as T;"
    " [one.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) for one in (M, T)]"
)


def describe_loading(model: KnownModel) -> dict[str, str]:
    """Lines by what they are for."""
    if model.loads == "hf":
        kind = "AutoModelForMaskedLM" if model.has_mlm_head else "AutoModel"
        return {
            "install": "pip install 'maskwright[hf]'",
            "Python": f'transformers.{kind}.from_pretrained("{model.id}")',
        }
    adapt = f"maskwright adapt {model.id} --text corpus.txt"
    if model.has_mlm_head:
        return {"adapt": adapt, "Python": f'maskwright.MaskedLanguageModel.from_pretrained("{model.id}")'}
    return {
        "adapt": f"{adapt}  (it has no masked-language-model head yet)",
        "Python": f'maskwright.PackedEncoder.from_pretrained("{model.id}")',
    }


def describe_finetuning(model: KnownModel, task: str | None = None) -> dict[str, str]:
    """The command that fine-tunes a model, and commands that must come before it, by purpose."""
    train, validation = _FILES.get(task or _USUAL_TASK, _USUAL_FILES)
    name = model.id.rpartition("/")[2] if model.needs_conversion else model.id
    command = f"maskwright finetune {task or _USUAL_TASK} --model {name} --train {train} --validation {validation}"
    if not model.needs_conversion:
        return {"finetune": command}
    convert = f'pip install sentencepiece protobuf && python -c "{_CONVERT}" {model.id} {name}'
    return {"convert": convert, "finetune": command}


BYTES_PER_PARAMETER = {"fp32": 4, "fp16": 2, "int8": 1}
_BYTE_UNITS = (("GB", 1e9, 1), ("MB", 1e6, 0), ("kB", 1e3, 0))
_COUNT_UNITS = (("B", 1e9, 1), ("M", 1e6, 0))
_ROUNDS_UP = 0.9995
"""999.5 of a unit print as 1 of the next, not as 1000."""


@dataclass(frozen=True)
class ModelMemory:
    """The weights of one model; activations, gradients and optimizer state come on top."""

    name: str
    parameters: int
    counting: str
    """What the parameters are a count of."""

    @property
    def bytes_by_precision(self) -> dict[str, int]:
        return {precision: size * self.parameters for precision, size in BYTES_PER_PARAMETER.items()}

    def to_json(self) -> dict[str, Any]:
        sizes = {f"{precision}_bytes": size for precision, size in self.bytes_by_precision.items()}
        return {"model": self.name, "parameters": self.parameters, **sizes, "counting": self.counting}


def compute_memory(model: KnownModel) -> ModelMemory:
    """Of the published number of parameters, as tables of memory are."""
    counting = f"as published; {model.counted:,} counted in the encoder"
    return ModelMemory(model.id, model.parameters, counting)


def format_bytes(number: int) -> str:
    """Whole MB below a GB, else GB to one decimal (1.4 GB, 7 GB); MB = 10**6 and GB = 10**9 bytes."""
    return _format(number, _BYTE_UNITS) or f"{number} bytes"


def format_parameters(number: int) -> str:
    """Whole millions, or billions to one decimal: 66M, 3.5B; below a million every digit."""
    return (_format(number, _COUNT_UNITS) or f"{number:,}").replace(" ", "")


def _format(number: int, units: tuple[tuple[str, float, int], ...]) -> str | None:
    for unit, size, digits in units:
        if number >= size * _ROUNDS_UP:
            return f"{number / size:.{digits}f}".removesuffix(".0") + f" {unit}"
    return None
