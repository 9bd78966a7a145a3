"""sentence-transformers' trainer on pairs of a query and a document; prints pairs a second of its second half.

python benchmarks/peers/trainer_retrieval.py MODEL PAIRS BATCH_SIZE MAX_LENGTH DEVICE
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback


class Clock(TrainerCallback):
    """When each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *given: Any, **named: Any) -> None:
        self.ends.append(time.perf_counter())


def main() -> None:
    name, pairs, batch_size, max_length, device = sys.argv[1:]
    records = [json.loads(line) for line in Path(pairs).read_text(encoding="utf-8").splitlines()]
    model = SentenceTransformer(name, device=device)
    model.max_seq_length = int(max_length)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=int(batch_size),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            bf16=device == "cuda",
        )
        dataset = Dataset.from_dict({key: [one[key] for one in records] for key in ("query", "positive")})
        loss = MultipleNegativesRankingLoss(model)
        trainer = SentenceTransformerTrainer(model, arguments, dataset, loss=loss, callbacks=[clock])
        stdout, sys.stdout = sys.stdout, sys.stderr  # the trainer prints its figures there
        trainer.train()
        sys.stdout = stdout
    middle = len(clock.ends) // 2
    print(int(batch_size) * (len(clock.ends) - middle) / (clock.ends[-1] - clock.ends[middle - 1]))


if __name__ == "__main__":
    main()
