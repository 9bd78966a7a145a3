"""What `fit` returns: one value per epoch under each metric's name."""

from __future__ import annotations

from collections.abc import Mapping


class History:
    """`history["loss"]`, `["mlm_accuracy"]`, and with validation `["val_loss"]`, `["val_mlm_accuracy"]`."""

    def __init__(self, values: Mapping[str, list[float]] | None = None) -> None:
        self.history: dict[str, list[float]] = {name: list(series) for name, series in (values or {}).items()}

    def append(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.history.setdefault(name, []).append(value)
