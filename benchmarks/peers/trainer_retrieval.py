"""sentence-transformers' trainer on pairs of a query and a document; the peer of benchmarks/contrastive.py.

TF32, fused AdamW, and workers that tokenize, on a GPU. The steps per second of the second half are written as JSON.

python benchmarks/peers/trainer_retrieval.py MODEL PAIRS BATCH_SIZE MAX_LENGTH DEVICE LEARNING_RATE PRECISION RESULT
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback


class Clock(TrainerCallback):
    """When each step was handed to the device; in the middle and at the end, when it was done."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.cuda.is_available() and state.global_step in (state.max_steps // 2, state.max_steps):
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def main() -> None:
    name, pairs, batch_size, max_length, device, learning_rate, precision, result = sys.argv[1:]
    records = [json.loads(line) for line in Path(pairs).read_text(encoding="utf-8").splitlines()]
    model = SentenceTransformer(name, device=device)
    model.max_seq_length = int(max_length)
    clock = Clock()
    is_gpu = device != "cpu"
    if is_gpu:  # the workers, which are forked, tokenize: they would wait for threads that only their parent has
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=int(batch_size),
            learning_rate=float(learning_rate),
            optim="adamw_torch_fused",
            dataloader_num_workers=4 if is_gpu else 0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not is_gpu,
            bf16=precision == "bf16",
            tf32=is_gpu,
        )
        dataset = Dataset.from_dict({key: [one[key] for one in records] for key in ("query", "positive")})
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, arguments, dataset, loss=loss, callbacks=[clock]).train()
    half = len(clock.ends) // 2
    rate = (len(clock.ends) - half) / (clock.ends[-1] - clock.ends[half - 1])
    Path(result).write_text(json.dumps({"steps_per_s": rate}))


if __name__ == "__main__":
    main()
