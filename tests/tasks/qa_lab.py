"""Questions that a single word of the context answers, as files of every kind."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

QUESTION = "who likes it"
_NAMES, _OTHERS = ["cat", "dog", "student", "teacher"], ["house", "road", "green", "long", "sees", "in", "the", "."]


def build_question(generator: random.Random, num_words: int, is_answered: bool = True) -> dict[str, Any]:
    """The one name among other words is the answer; without a name there is none."""
    words = [generator.choice(_OTHERS) for _ in range(num_words)]
    if not is_answered:
        return {"question": QUESTION, "context": " ".join(words), "answers": []}
    place = generator.randrange(num_words)
    words[place] = generator.choice(_NAMES)
    start = len(" ".join([*words[:place], ""]))
    return {
        "question": QUESTION,
        "context": " ".join(words),
        "answers": [{"text": words[place], "answer_start": start}],
    }


def build_questions(num_questions: int, seed: int, unanswered: float = 0.0) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    return [
        build_question(generator, generator.randrange(4, 14), generator.random() >= unanswered)
        for _ in range(num_questions)
    ]


def write_squad(path: Path, records: list[dict[str, Any]]) -> Path:
    """As SQuAD v2.0 is published; one paragraph to a record here."""
    paragraphs = []
    for number, record in enumerate(records):
        asked = {"id": f"q{number}", **record, "is_impossible": not record["answers"]}
        paragraphs.append({"context": asked.pop("context"), "qas": [asked]})
    content = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
