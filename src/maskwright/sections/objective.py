"""What is learnt from text, where that is more than one thing."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field

from maskwright.sections.base import Section


class PhaseConfig(Section):
    """A part of a run with an objective of its own."""

    mode: Literal["mlm", "clm", "hybrid"] = Field(default="mlm", description="The objective of this phase.")
    until: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The progress at which it ends; the last phase ends at 1, or leaves it unset.",
    )
    causal_share: float = Field(default=0.5, ge=0, le=1, description="hybrid: share of samples that are continued.")

    def find_share(self) -> float:
        """The share of samples that are continued, the others have masked tokens filled."""
        return {"mlm": 0.0, "clm": 1.0, "hybrid": self.causal_share}[self.mode]


class ReplacedTokensConfig(Section):
    """training.mode=rtd: a small generator fills masked tokens, the model finds out which (Clark et al. 2020)."""

    generator_size: float = Field(
        default=0.25, gt=0, le=1, description="Width of the generator, as a share of the model's."
    )
    discriminator_weight: float = Field(
        default=50.0, gt=0, description="Weight of finding replaced tokens in the loss."
    )
    temperature: float = Field(default=1.0, gt=0, description="Of the generator's choice of tokens.")


class PairsConfig(Section):
    """An auxiliary loss on pairs of segments, as BERT and ALBERT have it."""

    task: Literal["nsp", "sop"] | None = Field(
        default=None, description="Does b follow a (nsp), are a and b in order (sop); unset: no pairs."
    )
    weight: float = Field(default=1.0, gt=0, description="Of the auxiliary loss.")


def check_phases(phases: list[PhaseConfig]) -> list[PhaseConfig]:
    """Phases follow one another and the last ends with the run."""
    ends = [phase.until for phase in phases]
    for number, (end, following) in enumerate(pairwise(ends), start=1):
        if end is None:
            raise ValueError(f"phase {number} has no 'until'; only the last may leave it out")
        if following is not None and following <= end:
            raise ValueError(f"phase {number + 1} ends at {following}, phase {number} at {end} already")
    if ends and ends[-1] not in (None, 1.0):
        raise ValueError(f"the last phase ends at {ends[-1]}; it must end at 1, the end of the run")
    return phases
