"""Nested values in other frameworks' names, into ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from maskwright.errors import InputError
from maskwright.sections.synonyms import RENAMED, SYNONYMS, compute_replaced, compute_unchanged, read_share
from maskwright.sections.training import MaskingConfig


def translate(values: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """`values` under our names only; a share they leave out is that of `below`, the values they are put on."""
    training, masking = values.get("training"), values.get("masking") or {}
    if not isinstance(training, Mapping) or not isinstance(masking, Mapping) or training.keys().isdisjoint(SYNONYMS):
        return dict(values)
    ours = {
        "training": {name: value for name, value in training.items() if name not in SYNONYMS},
        "masking": dict(masking),
    }
    for name, (section, our_name) in RENAMED.items():
        if name in training:
            _put(ours[section], our_name, training[name], f"training.{name}", section)
    if "mlm_replace_prob" in training or ("mlm_random_prob" in training and "unchanged_ratio" not in masking):
        unchanged = _read_unchanged(training, ours["masking"], below.get("masking") or {})
        _put(ours["masking"], "unchanged_ratio", unchanged, "what training.mlm_replace_prob leaves", "masking")
    return {**values, **{section: settings for section, settings in ours.items() if settings or section in values}}


def find_spellings(layers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Our dotted key of every other name that is used, with that name: complaints should speak of what was written."""
    sections = [layer.get("training") for layer in layers]
    used = {name for section in sections if isinstance(section, Mapping) for name in section}
    return {".".join(key): f"training.{name}" for name, key in RENAMED.items() if name in used}


def _put(settings: dict[str, Any], name: str, value: Any, spelling: str, section: str) -> None:
    if name in settings and _comparable(settings[name]) != _comparable(value):
        raise InputError(
            f"{spelling} is {value} and {section}.{name} is {settings[name]}; they are one setting, keep one of them"
        )
    settings[name] = value


def _read_unchanged(training: Mapping[str, Any], masking: Mapping[str, Any], below: Mapping[str, Any]) -> float:
    defaults = MaskingConfig()
    random_below, unchanged_below = (
        read_share(f"masking.{name}", below.get(name, getattr(defaults, name)))
        for name in ("random_token_ratio", "unchanged_ratio")
    )
    replace = training.get("mlm_replace_prob", compute_replaced(random_below, unchanged_below))
    return compute_unchanged(replace, masking.get("random_token_ratio", random_below))


def _comparable(value: Any) -> float | str:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
