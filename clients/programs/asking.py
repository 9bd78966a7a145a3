"""What every program shares: the models and questions it is given, and the form in which it prints answers."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOP_K = 3
MASK = "[MASK]"


def answer_all(
    ask: Callable[[dict[str, Any]], list[Any] | None], version: str, variant: str = "fp32", of: str = "answers"
) -> None:
    """Print a line of JSON for each model that `ask` has answers for; an error is one of them.

    `of` names our answers that they are compared with.
    """
    for model in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        try:
            found: dict[str, Any] = {"answers": ask(model)}
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        if found.get("answers", ()) is not None:
            line = {"model": model["model"], "version": version, "variant": variant, "of": of, **found}
            print(json.dumps(line), flush=True)


def put_mask(text: str, mask_token: str) -> str:
    return text.replace(MASK, mask_token)


def find_span(start: Any, end: Any, is_context: Sequence[bool]) -> tuple[int, int, float]:
    """The most probable span of the context: softmax over the context and [CLS] of either end, as SQuAD's readers."""
    import numpy as np

    allowed = np.array(is_context)
    allowed[0] = True
    starts, ends = (np.exp(np.where(allowed, one - one[allowed].max(), -np.inf)) for one in (start, end))
    starts, ends = starts / starts.sum(), ends / ends.sum()
    starts[0] = ends[0] = 0.0
    scores = np.triu(np.outer(starts, ends))
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return int(first), int(last), float(scores[first, last])
