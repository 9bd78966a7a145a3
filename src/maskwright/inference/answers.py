"""A list of answers that a notebook shows as a table, with the texts and a bar for each score."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from maskwright.pictures.look import frame_cell

MOST_SHOWN = 50
"""Answers of a table."""
_MOST_ITEMS, _LONGEST = 10, 200
_BAR_EMS = 6.0
_NAMES = ("label", "token_str", "entity_group", "entity", "answer", "sequence")
"""Which key of an answer names it; the first that it has."""
_SHOWN_BESIDE = {"entity_group": "word", "entity": "word"}


class Answers(list[Any]):
    """An ordinary list, equal to one with the same items; `texts` are what was asked, if known."""

    def __init__(self, answers: Iterable[Any], texts: Sequence[str] = ()) -> None:
        super().__init__(answers)
        self.texts = list(texts)

    def _repr_html_(self) -> str:
        rows = []
        for number, answer in enumerate(self[:MOST_SHOWN]):
            text = self.texts[number] if number < len(self.texts) else f"{number + 1}"
            rows.append(f"<tr><th>{_shorten(text)}</th><td>{_show(answer)}</td></tr>")
        if len(self) > MOST_SHOWN:
            rows.append(f"<tr><th></th><td>and {len(self) - MOST_SHOWN:,} more</td></tr>")
        return frame_cell(f"<table>{''.join(rows)}</table>")


def _show(answer: Any) -> str:
    """HTML of one answer, whatever its kind."""
    if answer is None:
        return "no text"
    if isinstance(answer, np.ndarray):
        each = f" for each of {len(answer):,} tokens" if answer.ndim > 1 else ""
        return f"vector of {answer.shape[-1]:,} numbers{each}"
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        more = f"<div>and {len(answer) - _MOST_ITEMS:,} more</div>" if len(answer) > _MOST_ITEMS else ""
        return "".join(f"<div>{_show(one)}</div>" for one in answer[:_MOST_ITEMS]) + more
    if is_dataclass(answer) and not isinstance(answer, type):
        answer = asdict(answer)
    if not isinstance(answer, Mapping):
        return _shorten(str(answer))
    if isinstance(answer.get("labels"), Sequence) and isinstance(answer.get("scores"), Sequence):  # of zero-shot
        pairs = zip(answer["labels"], answer["scores"], strict=True)
        return _show([{"label": label, "score": score} for label, score in pairs])
    name = next((key for key in _NAMES if key in answer), None)
    words = "" if name is None else _shorten(str(answer[name]))
    if name in _SHOWN_BESIDE:
        words = f"{_shorten(str(answer.get(_SHOWN_BESIDE[name], '')))} <b>{words}</b>"
    score = answer.get("score")
    if not isinstance(score, int | float):
        return words or _shorten(str(dict(answer)))
    width = _BAR_EMS * min(1.0, max(0.0, float(score)))
    return f'<span class="share" style="width: {width:.2f}em"></span> {score:.3f} {words}'


def _shorten(text: str) -> str:
    return html.escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
