"""Six synonyms of settings under `training`; only the settings they stand for are stored and saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import PrivateAttr

from maskwright.errors import InputError
from maskwright.sections.base import Section
from maskwright.sections.objective import MaskingConfig

_RENAMED = {
    "training_mode": ("training", "mode"),
    "eval_interval": ("training", "evaluate_every_steps"),
    "eval_steps": ("training", "evaluate_max_batches"),
    "mlm_mask_prob": ("masking", "ratio"),
    "mlm_random_prob": ("masking", "random_token_ratio"),
}
"""Each name with the section and the name of the setting it stands for."""
_SHARES = ("mlm_replace_prob", "mlm_random_prob")
"""Shares of the chosen tokens: those that become [MASK] (1 minus our two shares), and random tokens."""
SYNONYMS = (*_RENAMED, "mlm_replace_prob")


def translate(values: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """`values` under our names only; a share they leave out is that of `below`, the values they are put on."""
    training, masking = values.get("training"), values.get("masking") or {}
    if not isinstance(training, Mapping) or not isinstance(masking, Mapping) or training.keys().isdisjoint(SYNONYMS):
        return dict(values)
    ours = {
        "training": {name: value for name, value in training.items() if name not in SYNONYMS},
        "masking": dict(masking),
    }
    for name, (section, our_name) in _RENAMED.items():
        if name in training:
            _put(ours[section], our_name, training[name], f"training.{name}", section)
    if "mlm_replace_prob" in training or ("mlm_random_prob" in training and "unchanged_ratio" not in masking):
        unchanged = _read_unchanged(training, ours["masking"], below.get("masking") or {})
        _put(ours["masking"], "unchanged_ratio", unchanged, "what training.mlm_replace_prob leaves", "masking")
    return {**values, **{section: settings for section, settings in ours.items() if settings or section in values}}


def find_spellings(layers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The synonyms that are used, by our dotted keys, so that errors name what the user wrote."""
    sections = [layer.get("training") for layer in layers]
    used = {name for section in sections if isinstance(section, Mapping) for name in section}
    return {".".join(key): f"training.{name}" for name, key in _RENAMED.items() if name in used}


class _Configuration(Protocol):
    """The part of the whole configuration that is needed here."""

    @property
    def masking(self) -> MaskingConfig: ...

    @property
    def training(self) -> SynonymsOfTraining: ...


class SynonymsOfTraining(Section):
    """As attributes too, the other names act on the settings they stand for.

    Those of masking live in another section, so a configuration tells its training section whose it is. That is no
    setting: it does not count when sections are compared, and a copy of the section alone is nobody's.
    """

    other_names = SYNONYMS
    _owner: _Configuration | None = PrivateAttr(None)

    if TYPE_CHECKING:

        @property
        def training_mode(self) -> str: ...
        @training_mode.setter
        def training_mode(self, value: str) -> None: ...
        @property
        def eval_interval(self) -> int | None: ...
        @eval_interval.setter
        def eval_interval(self, value: int | None) -> None: ...
        @property
        def eval_steps(self) -> int | None: ...
        @eval_steps.setter
        def eval_steps(self, value: int | None) -> None: ...
        @property
        def mlm_mask_prob(self) -> float: ...
        @mlm_mask_prob.setter
        def mlm_mask_prob(self, value: float) -> None: ...
        @property
        def mlm_replace_prob(self) -> float: ...
        @mlm_replace_prob.setter
        def mlm_replace_prob(self, value: float) -> None: ...
        @property
        def mlm_random_prob(self) -> float: ...
        @mlm_random_prob.setter
        def mlm_random_prob(self, value: float) -> None: ...

    else:

        def __getattr__(self, name: str) -> Any:
            if name == "mlm_replace_prob":
                masking = self._masking()
                return _compute_replaced(masking.random_token_ratio, masking.unchanged_ratio)
            return getattr(*self._find(name)) if name in _RENAMED else super().__getattr__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in _SHARES:
                self._set_shares(**{share: getattr(self, share) for share in _SHARES} | {name: value})
            elif name in _RENAMED:
                setattr(*self._find(name), value)
            else:
                super().__setattr__(name, value)

    def owned_by(self, configuration: _Configuration) -> Any:
        """This section, or a copy of it where it is another configuration's already."""
        section = self.model_copy() if self._is_owned and self._owner is not configuration else self
        section._owner = configuration
        return section

    @property
    def _is_owned(self) -> bool:
        return self._owner is not None and self._owner.training is self

    def _masking(self) -> MaskingConfig:
        if self._owner is None or not self._is_owned:
            raise InputError(
                "mlm_mask_prob, mlm_replace_prob and mlm_random_prob are settings of a whole Config; this training"
                " section belongs to none, so set MaskingConfig's ratio, random_token_ratio and unchanged_ratio"
            )
        return self._owner.masking

    def _find(self, name: str) -> tuple[Section, str]:
        """The section and the setting that a name stands for."""
        section, setting = _RENAMED[name]
        return self._masking() if section == "masking" else self, setting

    def _set_shares(self, mlm_replace_prob: float, mlm_random_prob: float) -> None:
        masking, unchanged = self._masking(), _compute_unchanged(mlm_replace_prob, mlm_random_prob)
        masking.unchanged_ratio = 0.0  # each assignment is checked, and the sum must not pass 1 between the two
        masking.random_token_ratio = mlm_random_prob
        masking.unchanged_ratio = unchanged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment] # settings can change

    def __copy__(self) -> Any:
        copied = super().__copy__()
        copied._owner = None
        return copied

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        copied = self.__copy__()  # and not the owner with it
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        return copied


def _put(settings: dict[str, Any], name: str, value: Any, spelling: str, section: str) -> None:
    if name in settings and _comparable(settings[name]) != _comparable(value):
        raise InputError(
            f"{spelling} is {value} and {section}.{name} is {settings[name]}; they are one setting, keep one of them"
        )
    settings[name] = value


def _comparable(value: Any) -> float | str:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _read_unchanged(training: Mapping[str, Any], masking: Mapping[str, Any], below: Mapping[str, Any]) -> float:
    defaults = MaskingConfig()
    random_below, unchanged_below = (
        _read_share(f"masking.{name}", below.get(name, getattr(defaults, name)))
        for name in ("random_token_ratio", "unchanged_ratio")
    )
    replace = training.get("mlm_replace_prob", _compute_replaced(random_below, unchanged_below))
    return _compute_unchanged(replace, masking.get("random_token_ratio", random_below))


def _compute_unchanged(replace: Any, random: Any) -> float:
    """What a share of [MASK] and one of random tokens leave as it is."""
    replace, random = _read_share("mlm_replace_prob", replace), _read_share("mlm_random_prob", random)
    if replace + random > 1 + 1e-9:
        raise InputError(
            f"mlm_replace_prob {replace} and mlm_random_prob {random} exceed 1 together; lower one of them, what they"
            " leave stays unchanged"
        )
    # 1 - 0.8 - 0.1 is 0.1 only after rounding, which must not lift the sum of both over 1 again.
    return max(0.0, min(round(1 - replace - random, 12), 1 - random))


def _compute_replaced(random: float, unchanged: float) -> float:
    return max(0.0, round(1 - random - unchanged, 12))


def _read_share(name: str, value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(f"{name} is {value!r}; expected a number from 0 to 1")
    return share
