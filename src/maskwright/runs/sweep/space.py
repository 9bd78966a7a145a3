"""What a sweep tries: settings with several values (`key=a,b,c`) or a range of numbers (`key=1e-4..3e-3`).

If the values can all be tried together, they are; otherwise Optuna's sampler chooses, by the losses that are known.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maskwright.config import list_settings
from maskwright.errors import InputError

DEFAULT_TRIALS = 27
_LOG_FROM = 10.0
"""Ranges whose ends differ by this factor are sampled by their logarithm."""
_RANGE = re.compile(r"([-+]?[\d_.]+(?:e[-+]?\d+)?)\.\.([-+]?[\d_.]+(?:e[-+]?\d+)?)", re.IGNORECASE)
_NOT_SWEPT = {
    "tokenizer": "losses of different tokenizers do not compare",
    "data": "losses on different held-out texts do not compare",
    "quality": "losses on different held-out texts do not compare",
    "model.from": "its models may have different tokenizers, whose losses do not compare",
    "training.mode": "losses of different objectives do not compare",
    "objective": "losses of different objectives do not compare",
    "preset": "recipes differ in text and tokenizer, whose losses do not compare",
    "run.name": "every trial has a folder of its own",
    "run.out": "every trial has a folder of its own",
    "run.store": "trials stay on this machine",
}
_DRAWS = 50
"""Tries for settings that were not tried yet."""


@dataclass(frozen=True)
class Choices:
    values: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.values)

    @property
    def examples(self) -> tuple[str, ...]:
        return self.values


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    is_whole: bool

    def __str__(self) -> str:
        scale = ", by its logarithm" if self.is_log else ""
        return f"{self.write(self.low)} to {self.write(self.high)}{scale}"

    @property
    def is_log(self) -> bool:
        return self.low > 0 and self.high / self.low >= _LOG_FROM

    @property
    def examples(self) -> tuple[str, ...]:
        return self.write(self.low), self.write(self.high)

    def write(self, value: float) -> str:
        """With four digits, but never outside of the range."""
        if self.is_whole:
            return str(int(value))
        rounded = float(f"{value:.4g}")
        return f"{rounded if self.low <= rounded <= self.high else value:g}"


Space = Mapping[str, Choices | Range]
Settings = Mapping[str, str]


def split_settings(settings: Sequence[str] | Mapping[str, Any]) -> tuple[list[str], dict[str, Choices | Range]]:
    """Settings with one value, as words; and those to sweep. In Python a list of values is one of choices."""
    words, space = [], dict[str, Choices | Range]()
    for word in _list_words(settings):
        key, sign, value = word.partition("=")
        swept = _read_swept(key, value) if sign else None
        if swept is None:
            words.append(word)
            continue
        if key in space:
            raise InputError(f"{key} is given twice; give all its values at once, as {key}=a,b,c")
        reason = next((why for name, why in _NOT_SWEPT.items() if key == name or key.startswith(f"{name}.")), None)
        if reason is not None:
            raise InputError(f"{key} cannot be swept: {reason}; give it one value")
        space[key] = swept
    if not space:
        raise InputError("nothing to sweep; give a setting several values, such as optimizer.learning_rate=1e-4,3e-4")
    return words, space


def _list_words(settings: Sequence[str] | Mapping[str, Any]) -> list[str]:
    if not isinstance(settings, Mapping):
        return list_settings(settings)
    words = []
    for key, value in settings.items():
        if isinstance(value, list | tuple):
            parts = [word.partition("=")[2] for one in value for word in list_settings({key: one})]
            words.append(f"{key}={','.join(parts)}")
        else:
            words += list_settings({key: value})
    return words


def _read_swept(key: str, value: str) -> Choices | Range | None:
    """None for a single value."""
    if found := _RANGE.fullmatch(value.strip()):
        return _read_range(key, *found.groups())
    parts = _split_at_commas(value)
    if len(parts) < 2:
        return None
    if "" in parts or len({*parts}) < len(parts):
        raise InputError(f"{key}={value} has an empty value or one twice; give different values, as {key}=a,b,c")
    return Choices(tuple(parts))


def _read_range(key: str, low: str, high: str) -> Range:
    try:
        ends = float(low), float(high)
    except ValueError:
        raise InputError(f"{key}={low}..{high} is no range of numbers; write it as {key}=1e-4..3e-3") from None
    if not ends[0] < ends[1]:
        raise InputError(f"{key}={low}..{high} does not rise; write the smaller end first")
    return Range(*ends, is_whole=all(re.fullmatch(r"[-+]?[\d_]+", end) for end in (low, high)))


def _split_at_commas(value: str) -> list[str]:
    """At those outside of brackets, which lists and maps have."""
    parts, depth = [""], 0
    for letter in value:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def count_combinations(space: Space) -> int | None:
    """None if there is a range."""
    if any(isinstance(one, Range) for one in space.values()):
        return None
    return math.prod(len(one.examples) for one in space.values())


def choose_settings(
    space: Space, number: int, num_trials: int, seed: int, past: Sequence[tuple[Settings, float | None]]
) -> dict[str, str]:
    """Those of trial `number`; `past` are the trials before it with their first losses, None for a failed one."""
    size = count_combinations(space)
    if size is not None and size <= num_trials:
        values = next(itertools.islice(itertools.product(*(one.examples for one in space.values())), number, None))
        return dict(zip(space, values, strict=True))
    tried = [dict(settings) for settings, _ in past]
    for draw in range(_DRAWS):
        chosen = _ask_optuna(space, hash_seed(seed, number, draw), past)
        if chosen not in tried:
            break
    return chosen


def hash_seed(seed: int, number: int, draw: int) -> int:
    """A seed of its own for each draw, below the largest that numpy takes."""
    return (seed * 1_000_003 + number * _DRAWS + draw) % 2**32


def check_optuna() -> None:
    try:
        import optuna  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise InputError("sampling from ranges needs Optuna: pip install 'maskwright[sweep]'") from error


def _ask_optuna(space: Space, seed: int, past: Sequence[tuple[Settings, float | None]]) -> dict[str, str]:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

    def describe(one: Choices | Range) -> BaseDistribution:
        if isinstance(one, Choices):
            return CategoricalDistribution(one.values)
        if one.is_whole:
            return IntDistribution(int(one.low), int(one.high), log=one.is_log)
        return FloatDistribution(one.low, one.high, log=one.is_log)

    def read(key: str, value: str) -> Any:
        one = space[key]
        return value if isinstance(one, Choices) else int(value) if one.is_whole else float(value)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    distributions = {key: describe(one) for key, one in space.items()}
    for settings, loss in past:
        # a pruned trial without any loss is worse than all others
        state = optuna.trial.TrialState.COMPLETE if loss is not None else optuna.trial.TrialState.PRUNED
        params = {key: read(key, value) for key, value in settings.items()}
        study.add_trial(optuna.trial.create_trial(state=state, params=params, distributions=distributions, value=loss))
    asked = study.ask(distributions).params
    return {key: value if isinstance(value, str) else _write(space[key], value) for key, value in asked.items()}


def _write(one: Choices | Range, value: float) -> str:
    assert isinstance(one, Range)
    return one.write(value)
