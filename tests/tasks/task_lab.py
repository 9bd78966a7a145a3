"""Files of examples whose label a single word decides, and the settings of runs that learn from them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskwright.tasks.config import TaskConfig, build_task_config

WORDS = {"good": ["likes", "follows", "carries"], "bad": ["sees", "remembers"]}


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def build_records(num_records: int, seed: int) -> list[dict[str, Any]]:
    """The verb decides the label, and how good it is."""
    generator = random.Random(seed)
    subjects, objects = ["the cat", "a small dog", "every student", "my old teacher"], ["the green house", "a road"]
    records = []
    for _ in range(num_records):
        label = generator.choice(["good", "bad"])
        verb = generator.choice(WORDS[label])
        text = f"{generator.choice(subjects)} {verb} {generator.choice(objects)}"
        score = float(len(verb)) if label == "good" else -1.0
        records.append({"text": text, "label": label, "score": score, "labels": [label, verb], "other": "it rains"})
    return records


@dataclass(frozen=True)
class Lab:
    """Files to learn from, and the settings of a run that takes a second or two."""

    folder: Path
    model: Path

    def config(self, task: str = "classification", **values: Any) -> TaskConfig:
        given = {
            "task": task,
            "model": str(self.model),
            "train": str(self.folder / "train.jsonl"),
            "validation": str(self.folder / "validation.jsonl"),
            "text_column": "text",
            "epochs": 2,
            "batch_size": 8,
            "learning_rate": 5e-3,
            **values,
        }
        return build_task_config(given)
