"""Pairs of sentences that belong together where they name the same animal."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from task_lab import WORDS, Lab, write_lines

from maskwright.runs.finetune.finetune import FinishedTask, finetune
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.config import TaskConfig

SETTINGS = ("training.device=cpu", "training.precision=fp32", "training.log_every_steps=4")
SUBJECTS = ("the cat", "a small dog", "my old teacher", "every student", "the quiet river", "one red bird")
VERBS = ("sees", "follows", "remembers", "likes", "carries")


def build_pairs(num_pairs: int, seed: int) -> list[dict[str, Any]]:
    """The first names a subject, the second the same or another: score 5 or 0, something between for the verb."""
    generator = random.Random(seed)
    records = []
    for _ in range(num_pairs):
        subject = generator.choice(SUBJECTS)
        is_same = generator.random() < 0.5
        other = subject if is_same else generator.choice([one for one in SUBJECTS if one != subject])
        verbs = generator.choice(VERBS), generator.choice(VERBS)
        records.append(
            {
                "sentence1": f"{subject} {verbs[0]} a long road",
                "sentence2": f"{other} {verbs[1]} the green house",
                "score": 4.0 * is_same + float(verbs[0] == verbs[1]),
            }
        )
    return records


def build_scored_pairs(num_pairs: int, seed: int) -> list[dict[str, Any]]:
    """5 where both verbs are of one kind, though the words differ: nothing that an untrained encoder can tell."""
    generator = random.Random(seed)
    records = []
    for _ in range(num_pairs):
        kinds = [generator.choice(list(WORDS)) for _ in range(2)]
        texts = [f"{generator.choice(SUBJECTS)} {generator.choice(WORDS[kind])} a long road" for kind in kinds]
        records.append({"sentence1": texts[0], "sentence2": texts[1], "score": 5.0 * (kinds[0] == kinds[1])})
    return records


def write_pairs(lab: Lab, train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> None:
    write_lines(lab.folder / "train.jsonl", train)
    write_lines(lab.folder / "validation.jsonl", validation)


def make_config(lab: Lab, **values: Any) -> TaskConfig:
    return lab.config("similarity", **{"text_column": None, **values})


def load(lab: Lab, **values: Any) -> TaskInputs:
    return load_task_inputs(make_config(lab, **values), lambda text: None)


def run(config: TaskConfig, out: Path, *settings: str, **options: Any) -> FinishedTask:
    return finetune(config, out, settings=[*SETTINGS, *settings], console=Console(quiet=True), **options)


def embed_padded(inputs: TaskInputs, encoder: torch.nn.Module, texts: list[str], pooling: str) -> torch.Tensor:
    """Vectors of length 1 by padding one text to a row: nothing of packing is used."""
    encoded = [inputs.tokenizer.backend.encode(text).ids for text in texts]
    longest = max(map(len, encoded))
    ids = torch.tensor([one + [0] * (longest - len(one)) for one in encoded])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in encoded])
    hidden = encoder(input_ids=ids, attention_mask=mask)["last_hidden_state"]
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(pooled, dim=-1)
