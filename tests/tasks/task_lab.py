"""Files of examples whose label a single word decides, and the settings of runs that learn from them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.runs.finetune.finetune import FinishedTask, finetune
from maskwright.tasks.config import TaskConfig, build_task_config

SETTINGS = ("training.device=cpu", "training.precision=fp32", "training.log_every_steps=4")
WORDS = {"good": ["likes", "follows", "carries"], "bad": ["sees", "remembers"]}
SUBJECTS = ["the cat/PER", "a small dog/PER", "my old/PER teacher/PER", "every student/PER"]
VERBS = ["likes", "follows", "sees", "remembers"]
OBJECTS = ["the green/LOC house/LOC", "a long road/LOC", "the quiet river/LOC"]


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


def write_conll(path: Path, num_sentences: int, seed: int) -> Path:
    """In BIO, from words with their types."""
    generator = random.Random(seed)
    lines: list[str] = []
    for _ in range(num_sentences):
        parts = [generator.choice(one) for one in (SUBJECTS, VERBS, OBJECTS)]
        before = ""
        for word, _, name in (part.partition("/") for part in " ".join(parts).split()):
            lines.append(f"{word}\t{('I-' if name == before else 'B-') + name if name else 'O'}")
            before = name
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


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


def run(config: TaskConfig, out: Path, *settings: str, **options: Any) -> FinishedTask:
    return finetune(config, out, settings=[*SETTINGS, *settings], console=Console(quiet=True), **options)


def read_final(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "final.json").read_text(encoding="utf-8")))
