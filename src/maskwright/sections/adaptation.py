"""A model that knows something learns something else."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from maskwright.sections.base import Section
from maskwright.sections.data import SourceConfig, build_sources


class ForgettingConfig(Section):
    """A watch on what the model knew before: its loss on general text, before, during and after the run."""

    general: str | list[SourceConfig] | None = Field(
        default=None, description="Text of the kind the model knows, such as builtin:python; unset: no watch."
    )
    max_increase: float = Field(
        default=0.1,
        gt=0,
        description="Nats by which that loss may grow; beyond, the run ends with its last weights within.",
    )
    max_tokens: int = Field(
        default=30_000, ge=100, description="About as many tokens of the general text are asked about."
    )

    @field_validator("general", mode="before")
    @classmethod
    def _read_sources(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else build_sources(value)
