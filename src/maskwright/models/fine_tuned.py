"""Which models of Hugging Face's layout were fine-tuned for a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ENDINGS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def find_task_architecture(config: Mapping[str, Any]) -> str | None:
    """What a config.json calls a model with a head for a task; None for any other.

    XLNet's and XLM's plain head for questions is called Simple, beside one that searches beams.
    """
    architectures = config.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    return next((name for name in names if name.removesuffix("Simple").endswith(_ENDINGS)), None)
