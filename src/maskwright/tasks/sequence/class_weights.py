"""How much each class counts in the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maskwright.errors import InputError

BALANCED = "balanced"


def read_weights(text: str, classes: Sequence[str]) -> list[float] | None:
    """The weights that 'a,b,c' gives to the classes in their order; None for 'balanced'."""
    if text == BALANCED:
        return None
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--class-weights is '{text}'; expected {BALANCED}, or numbers such as 1,2.5") from error
    if len(weights) != len(classes):
        raise InputError(
            f"--class-weights has {len(weights)} numbers, there are {len(classes)} classes; give one for each, in the"
            f" order {', '.join(classes)}"
        )
    if not all(0.0 < weight < float("inf") for weight in weights):
        raise InputError(f"--class-weights is '{text}'; every weight must be positive")
    return weights


def weigh_classes(text: str, counts: Mapping[str, int]) -> list[float]:
    """Weights with a mean of 1 over the examples, so that the learning rate keeps its meaning.

    `balanced` lets all classes count alike: a class of n of N examples, with C classes, weighs N / (C n).
    """
    classes, total = list(counts), sum(counts.values())
    weights = read_weights(text, classes) or [total / (len(classes) * counts[name]) for name in classes]
    mean = sum(weight * counts[name] for name, weight in zip(classes, weights, strict=True)) / total
    return [weight / mean for weight in weights]


def weigh_positives(text: str, counts: Mapping[str, int], num_examples: int) -> list[float]:
    """For classes that are asked one by one: what a positive weighs against a negative of its class.

    `balanced` lets the positives of a class count as much as its negatives.
    """
    weights = read_weights(text, list(counts))
    return weights or [max(num_examples - count, 1) / count for count in counts.values()]
