"""How much memory a model's weights take, and numbers as the tables of papers print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maskwright.catalogue.table import KnownModel

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
