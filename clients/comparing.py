"""How far a client's answers are from Maskwright's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3, "q8": 5e-2, "gguf": 5e-3, "gguf16": 5e-3, "gguf8": 5e-2, "ids": 0.0}
"""Of probabilities, and of vectors as a share of their largest number. fp32: what products in another order give; fp16
and q8: what rounding weights, and in q8 hidden states too, gives in models of this size. gguf: as fp16, because
llama.cpp has another formula for GELU and reads it from a table in fp16. ids: those of tokens, which are equal."""


class DifferenceError(Exception):
    """Answers that are not the same in kind: another class, token, entity or span."""


def compare(kind: str, ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of a score, or of a vector's number as a share of the largest; other answers are errors.

    A program that takes short texts alone answers the first questions.
    """
    if not theirs or len(theirs) > len(ours):
        raise DifferenceError(f"{len(theirs)} answers to {len(ours)} questions")
    pairs = list(zip(ours, theirs, strict=False))
    if kind in ("embed", "splade", "colbert"):
        return max(_compare_vectors(a, b) for a, b in pairs)
    if kind in ("fill-mask", "ner"):
        for a, b in pairs:
            if len(a) != len(b):
                raise DifferenceError(f"{_name_all(b)} instead of {_name_all(a)}")
        pairs = [one for a, b in pairs for one in zip(a, b, strict=True)]
    for a, b in pairs:
        for wanted, found in zip(a[:-1], b[:-1], strict=True):
            if found is not None and _normalize(found) != _normalize(wanted):
                raise DifferenceError(f"{_name(b)} instead of {_name(a)}")
    return max((abs(a[-1] - b[-1]) for a, b in pairs), default=0.0)


def _compare_vectors(ours: Sequence[float], theirs: Sequence[float]) -> float:
    a, b = np.array(ours), np.array(theirs)
    if a.shape != b.shape:
        raise DifferenceError(f"a vector of {b.shape} numbers instead of {a.shape}")
    return float(np.abs(a - b).max() / np.abs(a).max())


def _normalize(value: Any) -> Any:
    """Programs that decode tokens, rather than cut them out of the text, give other spaces and cases."""
    return re.sub(r"\s|^##", "", value).lower() if isinstance(value, str) else value


def _name(answer: Sequence[Any]) -> str:
    return " ".join(f"{part:.3f}" if isinstance(part, float) else repr(part) for part in answer)


def _name_all(answers: Sequence[Any]) -> str:
    return "; ".join(map(_name, answers)) or "nothing"
