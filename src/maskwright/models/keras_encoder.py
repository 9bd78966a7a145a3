"""What is different about a model of Keras 3 on its torch backend: a module whose weights go by numbered names."""

from __future__ import annotations

from typing import Any

from torch import nn

from maskwright.errors import InputError


def is_keras(encoder: nn.Module) -> bool:
    return any(base.__module__.partition(".")[0] == "keras" for base in type(encoder).__mro__)


def check_has_weights(encoder: nn.Module) -> None:
    """Catch a Keras model that makes its weights at its first call, too late for an optimizer to see them."""
    if is_keras(encoder) and not getattr(encoder, "built", True):
        raise InputError(
            f"{type(encoder).__name__} has no weights yet; call it once on a batch such as"
            " {'input_ids': ids, 'attention_mask': ones} before it is wrapped"
        )


def find_stable_names(encoder: nn.Module) -> dict[str, str]:
    """Names for a file, by those in the state: Keras counts layers of a process, so a second `dense` is `dense_1`."""
    state = encoder.state_dict(keep_vars=True)
    if not is_keras(encoder):
        return {name: name for name in state}
    variables: Any = encoder.variables
    numbers = {id(variable.value): number for number, variable in enumerate(variables)}
    return {name: f"variables.{numbers[id(value)]}" if id(value) in numbers else name for name, value in state.items()}
