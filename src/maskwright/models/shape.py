"""The configuration of an encoder: what those of all families have in common, and how they are checked."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any, Self

from maskwright.errors import InputError
from maskwright.models.layers import ACTIVATIONS
from maskwright.suggestions import suggest

_LARGEST_SIZE = 1 << 24
_MOST_LAYERS = 1024


class EncoderShape:
    """What the configurations of encoders, frozen dataclasses, have in common: names and types are checked."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Only looks at the names; the dataclass sets the fields."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type] # every subclass is a dataclass
        for name in settings:
            if name not in known:
                raise InputError(f"{cls.__name__} has no setting '{name}'{suggest(name, known)}")
        return super().__new__(cls)


def build_shape(layers: int, width: int, attn_heads: int, intermediate_size: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": attn_heads,
        "intermediate_size": intermediate_size,
    }


def check_shape(config: Any, rates: tuple[str, ...], activation: str) -> None:
    """The checks every encoder's configuration shares; `rates` and `activation` name its fields of those kinds."""
    for field in fields(config):
        _check_type(field.name, getattr(config, field.name), field.default)
    sizes = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    for name, largest in (*((name, _LARGEST_SIZE) for name in sizes), ("num_hidden_layers", _MOST_LAYERS)):
        if not 1 <= getattr(config, name) <= largest:
            raise InputError(f"{name} is {getattr(config, name)}; it must lie between 1 and {largest:,}")
    if not 0 <= config.pad_token_id < config.vocab_size:
        raise InputError(f"pad_token_id is {config.pad_token_id}, outside the vocabulary of {config.vocab_size}")
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads {config.num_attention_heads}"
        )
    for name in rates:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise InputError(f"{name} is {getattr(config, name)}; it must lie in [0, 1)")
    check_positive(config, ("initializer_range",))
    check_choice(activation, getattr(config, activation), ACTIVATIONS)
    check_choice("residual_init", config.residual_init, ("normal", "zero"))


_TYPES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}


def _check_type(name: str, value: Any, default: Any) -> None:
    """The type of a setting is that of its default."""
    kind, expected = _TYPES.get(type(default), (object, ""))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_positive(config: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise InputError(f"{name} is {getattr(config, name)}; it must be positive")


def check_choice(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise InputError(f"{name} is '{value}'{suggest(str(value), known)}")
