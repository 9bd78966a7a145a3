"""One training step of ours beside one of transformers: same shape, same texts, same precision, same device.

The peer is `BertForMaskedLM` with its MLM collator, padded batches and fused AdamW, as `transformers.Trainer` runs it.
Texts are random tokens of log-normal length (mean about 0.35 of the maximum), as sentences have, or all of full length.

    python benchmarks/train_step.py --variant tiny --length 128
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

import maskwright as mw
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.training.engine import Engine
from maskwright.training.precision import Precision
from maskwright.training.state import TrainingState

CLS, SEP, PAD, MASK, FIRST = 2, 3, 0, 4, 5


def make_documents(num_documents: int, length: int, vocab_size: int, is_dense: bool) -> list[list[int]]:
    random = np.random.default_rng(0)
    lengths = np.full(num_documents, length - 2)
    if not is_dense:
        lengths = np.clip(np.exp(random.normal(np.log(0.3 * length), 0.6, num_documents)), 3, length - 2).astype(int)
    return [random.integers(FIRST, vocab_size, size).tolist() for size in lengths]


class Peer:
    """transformers: padded batches, the head on every token."""

    def __init__(self, arguments: argparse.Namespace, documents: list[list[int]]) -> None:
        self.model = BertForMaskedLM(build_peer_config(arguments)).to(arguments.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)
        self.collator = DataCollatorForLanguageModeling(build_peer_tokenizer(arguments.vocab_size))
        self.precision = Precision(arguments.precision)
        self.precision.apply()
        self.rows = [{"input_ids": [CLS, *ids, SEP]} for ids in documents]
        self.device, self.batch_rows, self.length = arguments.device, arguments.rows, arguments.length

    def batches(self) -> Iterator[dict[str, torch.Tensor]]:
        for start in cycle(range(0, len(self.rows) - self.batch_rows + 1, self.batch_rows)):
            rows = [
                {"input_ids": row["input_ids"] + [PAD] * (self.length - len(row["input_ids"]))}
                for row in self.rows[start : start + self.batch_rows]
            ]
            for row in rows:
                row["attention_mask"] = [int(token_id != PAD) for token_id in row["input_ids"]]
            yield self.collator(rows)

    def step(self, batch: dict[str, torch.Tensor]) -> int:
        with self.precision.autocast(torch.device(self.device)):
            loss = self.model(**{name: tensor.to(self.device) for name, tensor in batch.items()}).loss
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return int(batch["attention_mask"].sum())


class Ours:
    """Packed rows, the head on masked tokens only."""

    def __init__(self, arguments: argparse.Namespace, documents: list[list[int]]) -> None:
        encoder = mw.BERT.from_variant(
            arguments.variant, vocab_size=arguments.vocab_size, max_position_embeddings=arguments.length
        )
        model = mw.MaskedLanguageModel(
            encoder, arguments.vocab_size, mask_token_id=MASK, special_token_ids=range(FIRST)
        )
        training = mw.TrainingConfig(device=arguments.device, precision=arguments.precision)
        engine = Engine(model, mw.OptimizerConfig(learning_rate=1e-4), mw.ScheduleConfig(), training, seed=0)
        self.train_step = engine.begin(TrainingState(), print)
        self.loader = PackedLoader(
            TokenStore.from_documents(documents, arguments.vocab_size),
            cls_token_id=CLS,
            sep_token_id=SEP,
            pad_token_id=PAD,
            row_length=arguments.length,
            rows_per_batch=arguments.rows,
        )
        self.device = arguments.device

    def batches(self) -> Iterator[mw.PackedBatch]:
        while True:
            yield from self.loader

    def step(self, batch: mw.PackedBatch) -> int:
        self.train_step(batch.to(self.device), step=0, epoch=0, mask_ratio=0.15)
        return batch.num_tokens()


def build_peer_config(arguments: argparse.Namespace) -> BertConfig:
    shape = mw.BERT.build_config(arguments.variant)
    return BertConfig(
        vocab_size=arguments.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=arguments.length,
    )


def build_peer_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{index}" for index in range(FIRST, vocab_size))]
    backend = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def measure(build: Callable[[], Peer | Ours], num_steps: int, device: str) -> dict[str, float]:
    """Real tokens per second over steps after two to warm up."""
    side = build()
    batches = side.batches()
    for batch in islice(batches, 2):
        side.step(batch)
    synchronize(device)
    begin = time.perf_counter()
    num_tokens = sum(side.step(batch) for batch in islice(batches, num_steps))
    synchronize(device)
    seconds = time.perf_counter() - begin
    return {"real_tokens_per_s": num_tokens / seconds, "step_ms": 1e3 * seconds / num_steps}


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="tiny", choices=list(mw.BERT.variants))
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--dense", action="store_true", help="all texts of full length")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    documents = make_documents(8 * arguments.rows, arguments.length, arguments.vocab_size, arguments.dense)
    results = {
        "transformers": measure(lambda: Peer(arguments, documents), arguments.steps, arguments.device),
        "maskwright": measure(lambda: Ours(arguments, documents), arguments.steps, arguments.device),
    }
    texts = "dense" if arguments.dense else "variable length"
    print(
        f"BERT {arguments.variant}, {arguments.rows} rows of {arguments.length}, {texts}, {arguments.device},"
        f" {arguments.precision}"
    )
    for name, figures in results.items():
        print(f"{name:<14} {figures['real_tokens_per_s']:10,.0f} real tokens/s  {figures['step_ms']:8,.0f} ms a step")
    ratio = results["maskwright"]["real_tokens_per_s"] / results["transformers"]["real_tokens_per_s"]
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
