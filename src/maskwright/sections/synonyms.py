"""Other names that the training section answers to; they stand for our own settings, which alone are kept and saved."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import PrivateAttr

from maskwright.errors import InputError
from maskwright.sections.base import Section

if TYPE_CHECKING:
    from maskwright.sections.training import MaskingConfig

RENAMED = {
    "training_mode": ("training", "mode"),
    "eval_interval": ("training", "evaluate_every_steps"),
    "eval_steps": ("training", "evaluate_max_batches"),
    "mlm_mask_prob": ("masking", "ratio"),
    "mlm_random_prob": ("masking", "random_token_ratio"),
}
"""Each name under `training` with the section and the name of the setting it stands for."""

SYNONYMS = (*RENAMED, "mlm_replace_prob")


def compute_unchanged(replace: Any, random: Any) -> float:
    """What a share of [MASK] and one of random tokens leave as it is."""
    replace, random = read_share("mlm_replace_prob", replace), read_share("mlm_random_prob", random)
    if replace + random > 1 + 1e-9:
        raise InputError(
            f"mlm_replace_prob {replace} and mlm_random_prob {random} exceed 1 together; lower one of them, what they"
            " leave stays unchanged"
        )
    # 1 - 0.8 - 0.1 is 0.1 only after rounding, which must not lift the sum of both over 1 again.
    return max(0.0, min(round(1 - replace - random, 12), 1 - random))


def read_share(name: str, value: Any) -> float:
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError(f"{name} is {value!r}; expected a number from 0 to 1")
    return share


def compute_replaced(random: float, unchanged: float) -> float:
    return max(0.0, round(1 - random - unchanged, 12))


class _Configuration(Protocol):
    """What is needed of the whole configuration, which is built of the sections."""

    @property
    def masking(self) -> MaskingConfig: ...

    @property
    def training(self) -> SynonymsOfTraining: ...


class SynonymsOfTraining(Section):
    """Reads and writes of the other names act on the settings they stand for.

    Those of masking live in another section, so a configuration tells its training section whose it is. That is no
    setting: it does not count when sections are compared, and a copy of the section alone is nobody's.
    """

    other_names = SYNONYMS
    _owner: _Configuration | None = PrivateAttr(None)

    @property
    def training_mode(self) -> str:
        """Another name of `training.mode`."""
        return self._read("training_mode")

    @training_mode.setter
    def training_mode(self, value: str) -> None:
        self._write("training_mode", value)

    @property
    def eval_interval(self) -> int | None:
        """Another name of `training.evaluate_every_steps`."""
        return self._read("eval_interval")

    @eval_interval.setter
    def eval_interval(self, value: int | None) -> None:
        self._write("eval_interval", value)

    @property
    def eval_steps(self) -> int | None:
        """Another name of `training.evaluate_max_batches`."""
        return self._read("eval_steps")

    @eval_steps.setter
    def eval_steps(self, value: int | None) -> None:
        self._write("eval_steps", value)

    @property
    def mlm_mask_prob(self) -> float:
        """Another name of `masking.ratio`."""
        return self._read("mlm_mask_prob")

    @mlm_mask_prob.setter
    def mlm_mask_prob(self, value: float) -> None:
        self._write("mlm_mask_prob", value)

    @property
    def mlm_replace_prob(self) -> float:
        """The share of [MASK], which masking leaves to what random and unchanged tokens don't take."""
        masking = self._masking()
        return compute_replaced(masking.random_token_ratio, masking.unchanged_ratio)

    @mlm_replace_prob.setter
    def mlm_replace_prob(self, value: float) -> None:
        self._set_shares(value, self.mlm_random_prob)

    @property
    def mlm_random_prob(self) -> float:
        """Another name of `masking.random_token_ratio`; the share of [MASK] stays when it is set."""
        return self._read("mlm_random_prob")

    @mlm_random_prob.setter
    def mlm_random_prob(self, value: float) -> None:
        self._set_shares(self.mlm_replace_prob, value)

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

    def _read(self, name: str) -> Any:
        section, setting = RENAMED[name]
        return getattr(self._masking() if section == "masking" else self, setting)

    def _write(self, name: str, value: Any) -> None:
        section, setting = RENAMED[name]
        setattr(self._masking() if section == "masking" else self, setting, value)

    def _set_shares(self, replace: float, random: float) -> None:
        masking, unchanged = self._masking(), compute_unchanged(replace, random)
        masking.unchanged_ratio = 0.0  # each assignment is checked, and the sum must not pass 1 between the two
        masking.random_token_ratio = random
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
