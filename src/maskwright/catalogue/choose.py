"""Choose a model: strict requirements filter the table, and a decision tree orders the rest.

The tree asks, in this order: more languages than English? a domain? more than 512 tokens? the fastest? the most
accurate? fewer parameters than RoBERTa-base? The first yes leads to a leaf of the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from maskwright.catalogue.table import (
    ACCURACY,
    ENGLISH,
    GENERAL,
    KnownModel,
    Leaf,
    Table,
    format_parameters,
    read_table,
)
from maskwright.errors import InputError
from maskwright.suggestions import checks_arguments, suggest

MULTILINGUAL = "multi"
USUAL_CONTEXT = 512
_MOST_ALTERNATIVES = 3
_NARROWING = ("language", "domain", "length", "max_parameters")
"""The requirements that filter models, in the order they are applied."""
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMB]?)", re.IGNORECASE)
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Wishes:
    """`language` is a code such as `de`, or `multi`; `length` is in tokens; `task` is one that `finetune` has."""

    language: str = "en"
    domain: str | None = None
    length: int | None = None
    max_parameters: int | None = None
    fastest: bool = False
    best_accuracy: bool = False
    task: str | None = None


@dataclass(frozen=True)
class Choice:
    leaf: str
    why: str
    model: KnownModel
    alternatives: tuple[KnownModel, ...]
    task: str | None = None
    score: str = ACCURACY
    """What models are compared by for the task."""


def parse_parameters(text: str) -> int:
    """`60M`, `1.5B`, `800k` or a plain number."""
    match = _COUNT.fullmatch(text.strip())
    count = round(float(match[1]) * _FACTORS[match[2].upper()]) if match else 0
    if count < 1:
        raise InputError(f"'{text}' is no number of parameters; give one such as 60M, 1.5B or 110000000")
    return count


def list_models() -> tuple[KnownModel, ...]:
    """The known published encoders, with their figures."""
    return tuple(read_table().models)


@checks_arguments
def choose_model(
    *,
    language: str | None = None,
    length: int | None = None,
    fastest: bool = False,
    best_accuracy: bool = False,
    max_parameters: int | str | None = None,
    domain: str | None = None,
    task: str | None = None,
) -> Choice:
    """The published encoder that fits these requirements best, the reasons, and alternatives.

    `max_parameters` is a number, or such as "60M"; the language is English unless given.
    """
    most = parse_parameters(str(max_parameters)) if max_parameters else None
    return choose(Wishes((language or "en").lower(), domain, length, most, fastest, best_accuracy, task))


def choose(wishes: Wishes) -> Choice:
    """The best model for the requirements, and alternatives; an InputError if no model fulfils them."""
    if wishes.fastest and wishes.best_accuracy:
        raise InputError("--fastest and --best-accuracy ask for opposite models; give one of them")
    table = read_table()
    if wishes.task is not None and wishes.task not in table.tasks:
        raise InputError(f"unknown --task '{wishes.task}'{suggest(wishes.task, table.tasks)}")
    score = ACCURACY if wishes.task is None else table.tasks[wishes.task]
    models = _narrow_to_language(list(table.models), wishes)
    models = _narrow_to_domain(models, wishes, table)
    models = _narrow_to_length(models, wishes)
    models = _narrow_to_size(models, wishes)
    name = _find_leaf(models, wishes, table)
    ranked = _rank(models, table.leaves[name], wishes, score)
    return Choice(name, table.leaves[name].why, ranked[0], _pick_alternatives(ranked), wishes.task, score)


def _narrow_to_language(models: list[KnownModel], wishes: Wishes) -> list[KnownModel]:
    """English is served by the models that know nothing else; they know it better."""
    if wishes.language == "en":
        return [model for model in models if model.languages == ENGLISH]
    multilingual = [model for model in models if model.languages != ENGLISH]
    if wishes.language == MULTILINGUAL:
        return multilingual
    left = [model for model in multilingual if wishes.language in model.languages]
    if not left:
        raise InputError(
            f"--language {wishes.language} leaves no model: give en, {MULTILINGUAL}, or the ISO 639 code of one of the"
            f" {len({code for model in multilingual for code in model.languages})} languages known, such as de"
        )
    return left


def _narrow_to_domain(models: list[KnownModel], wishes: Wishes, table: Table) -> list[KnownModel]:
    if wishes.domain is not None and wishes.domain not in table.domains:
        raise InputError(f"unknown --domain '{wishes.domain}'{suggest(wishes.domain, table.domains)}")
    left = [model for model in models if model.domain == (wishes.domain or GENERAL)]
    if not left:
        raise InputError(
            f"--domain {wishes.domain} leaves no model: {_describe_before('domain', wishes)}there are general models"
            " only; leave --domain out and adapt one to your text"
        )
    return left


def _narrow_to_length(models: list[KnownModel], wishes: Wishes) -> list[KnownModel]:
    left = [model for model in models if model.context >= (wishes.length or 0)]
    if not left:
        longest = max(models, key=lambda model: model.context)
        raise InputError(
            f"--length {wishes.length} leaves no model: {_describe_before('length', wishes)}the longest context is"
            f" {longest.context} tokens ({longest.id}); ask for that or less, and cut longer texts"
        )
    return left


def _narrow_to_size(models: list[KnownModel], wishes: Wishes) -> list[KnownModel]:
    if wishes.max_parameters is None:
        return models
    left = [model for model in models if model.parameters <= wishes.max_parameters]
    if not left:
        smallest = min(models, key=lambda model: model.parameters)
        raise InputError(
            f"--max-parameters {wishes.max_parameters} leaves no model: {_describe_before('max_parameters', wishes)}the"
            f" smallest has {format_parameters(smallest.parameters)} ({smallest.id}); allow that many"
        )
    return left


def _describe_before(wish: str, wishes: Wishes) -> str:
    """The narrowing wishes applied before this one, as the flags that they are."""
    names = _NARROWING[: _NARROWING.index(wish)]
    said = [f"--{name} {getattr(wishes, name)}" for name in names if getattr(wishes, name) != getattr(Wishes(), name)]
    return f"with {' '.join(said)} " if said else ""


def _find_leaf(models: list[KnownModel], wishes: Wishes, table: Table) -> str:
    all_rounder = table.leaves["general"].families[0]
    questions = {
        "multilingual": wishes.language != "en",
        "domain": wishes.domain is not None,
        "long": (wishes.length or 0) > USUAL_CONTEXT,
        "fastest": wishes.fastest,
        "accurate": wishes.best_accuracy,
        "efficient": all(model.family != all_rounder for model in models),
    }
    return next((leaf for leaf, answer in questions.items() if answer), "general")


def _rank(models: list[KnownModel], leaf: Leaf, wishes: Wishes, score: str) -> list[KnownModel]:
    """By family as the leaf has them; within one by speed or score if asked for, else as in the table.

    Of equally accurate models the cheaper comes first; of those without a figure the larger.
    """
    families = leaf.when_fastest if wishes.fastest and leaf.when_fastest else leaf.families

    def key(model: KnownModel) -> tuple[float, ...]:
        place = families.index(model.family) if model.family in families else len(families)
        if wishes.fastest:
            return place, model.cost
        if wishes.best_accuracy:
            value = model.find_score(score)
            return (place, 0, -model.parameters) if value is None else (place, -value, model.cost)
        return (place,)

    return sorted(models, key=key)


def _pick_alternatives(ranked: list[KnownModel]) -> tuple[KnownModel, ...]:
    """The best of each other family, then what else there is."""
    best = {model.family: model for model in reversed(ranked)}
    others = [model for model in ranked[1:] if best[model.family] is model]
    rest = [model for model in ranked[1:] if model not in others]
    return tuple((others + rest)[:_MOST_ALTERNATIVES])
