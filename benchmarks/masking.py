"""Masking's share of a training step, and its speed beside the collators of transformers.

Share: what masking adds to a training step, for each strategy, as the difference between runs of steps with it and
with a batch that is masked already (on a GPU BERT-base). No step waits for the device, as in a run. Speed, on
the CPU: real tokens per second from samples to a masked batch. Ours packs the samples into rows and masks those; the
peer is `DataCollatorForLanguageModeling`, with `whole_word_mask` beside our words and spans, on the same samples as
padded lists. The last column compares masking alone, on batches that are laid out already; the collator then draws a
coin for each token from a generator, ours an exact share from a hash of the sample. Texts are random tokens: sentences
of log-normal length, in words of 1.4 tokens in the mean.

    python benchmarks/masking.py
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

import maskwright as mw
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.masking.strategies import build_masker
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState

CLS, SEP, PAD, MASK, FIRST = 2, 3, 0, 4, 5
STRATEGIES = ("token", "whole_word", "span")
RATIO = 0.15
REPEATS = 5


def build_loader(arguments: argparse.Namespace) -> PackedLoader:
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(np.log(0.3 * arguments.length), 0.6, 12 * arguments.rows))
    lengths = np.clip(lengths, 3, arguments.length - 2).astype(np.int64)
    ids = random.integers(FIRST, arguments.vocab_size, lengths.sum())
    store = TokenStore.from_arrays(ids, lengths, random.random(len(ids)) < 0.7, arguments.vocab_size)
    return PackedLoader(
        store,
        cls_token_id=CLS,
        sep_token_id=SEP,
        pad_token_id=PAD,
        row_length=arguments.length,
        rows_per_batch=arguments.rows,
        with_words=True,
    )


def measure(act: Callable[[], object], repeats: int) -> float:
    """The median of several runs on the CPU, in seconds."""
    seconds = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[2:]))


def measure_share(arguments: argparse.Namespace, batch: mw.PackedBatch, strategy: str) -> dict[str, float]:
    encoder = mw.BERT.from_variant(
        arguments.variant, vocab_size=arguments.vocab_size, max_position_embeddings=arguments.length
    )
    model = mw.MaskedLanguageModel(
        encoder, arguments.vocab_size, mask_token_id=MASK, special_token_ids=range(FIRST), strategy=strategy
    )
    training = mw.TrainingConfig(device=arguments.device, precision=arguments.precision)
    engine = Engine(model, mw.OptimizerConfig(), mw.ScheduleConfig(), training, seed=0)
    train_step = engine.begin(TrainingState(), print)
    batch = batch.to(arguments.device)
    corrupt, masked = model.corrupt, model.corrupt(batch, 0, 0, RATIO)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * REPEATS):
        is_masked_anew = turn % 2 == 0
        model.corrupt = corrupt if is_masked_anew else lambda *_, **__: masked
        seconds[is_masked_anew].append(time_steps(train_step, batch, arguments))
    step_s, plain_s = (float(np.median(seconds[is_masked_anew])) for is_masked_anew in (True, False))
    return {"mask_ms": 1e3 * (step_s - plain_s), "step_ms": 1e3 * step_s, "share": 1 - plain_s / step_s}


def time_steps(train_step: Callable[..., object], batch: mw.PackedBatch, arguments: argparse.Namespace) -> float:
    """Seconds a step, the first left out."""
    for number in range(arguments.steps + 1):
        if number == 1:
            synchronize(arguments.device)
            begin = time.perf_counter()
        train_step(batch, step=0, epoch=0, mask_ratio=RATIO)
    synchronize(arguments.device)
    return (time.perf_counter() - begin) / arguments.steps


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Peer:
    """A collator on samples of lists, as `transformers.Trainer` calls it; special tokens are known beforehand."""

    def __init__(self, batch: mw.PackedBatch, arguments: argparse.Namespace, whole_word: bool) -> None:
        names = [f"w{index}" for index in range(FIRST, arguments.vocab_size)]
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *names]
        backend = Tokenizer(WordLevel({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
        roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
        with warnings.catch_warnings(action="ignore"):
            self.collator = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=whole_word)
        self.samples = [self._describe(*sample, whole_word, arguments.length) for sample in list_samples(batch)]

    @staticmethod
    def _describe(ids: list[int], starts: list[bool], whole_word: bool, length: int) -> dict[str, list[object]]:
        ids = ids + [PAD] * (length - len(ids))
        sample: dict[str, list[object]] = {
            "input_ids": [*ids],
            "attention_mask": [int(token_id != PAD) for token_id in ids],
            "special_tokens_mask": [int(token_id < FIRST) for token_id in ids],
        }
        if whole_word:  # tokens of a word touch, others are a character apart
            starts = starts + [True] * (length - len(starts))
            sample["offset_mapping"] = [(2 * place + start, 2 * place + 2) for place, start in enumerate(starts)]
        return sample

    def __call__(self) -> object:
        return self.collator([{**sample} for sample in self.samples])

    def build_masking(self) -> Callable[[], object]:
        """Its masking alone, on tensors that are padded already."""
        names = ("input_ids", "special_tokens_mask", "offset_mapping")
        tensors = {name: torch.tensor([one[name] for one in self.samples]) for name in names if name in self.samples[0]}
        input_ids = tensors.pop("input_ids")
        return lambda: self.collator.torch_mask_tokens(input_ids.clone(), **tensors)


def list_samples(batch: mw.PackedBatch) -> list[tuple[list[int], list[bool]]]:
    """The ids and the beginnings of words of each sample."""
    assert batch.word_starts is not None
    samples = []
    for row, place in torch.nonzero((batch.positions == 0) & ~batch.is_padding).tolist():
        is_its = batch.document_ids[row] == batch.document_ids[row, place]
        samples.append((batch.input_ids[row][is_its].tolist(), batch.word_starts[row][is_its].tolist()))
    return samples


def measure_speed(
    arguments: argparse.Namespace, loader: PackedLoader, batch: mw.PackedBatch, strategy: str
) -> dict[str, float]:
    """From samples to a masked batch, and masking alone, on the CPU."""
    masker = build_masker(arguments.vocab_size, MASK, range(FIRST), strategy=strategy)
    numbers = [
        list(dict.fromkeys(row[row_is_real].tolist()))
        for row, row_is_real in zip(batch.sample_ids, ~batch.is_padding, strict=True)
    ]
    ours_s = measure(lambda: masker.corrupt(loader.build_batch(numbers), RATIO, 0, 0), 30)
    peer = Peer(batch, arguments, whole_word=strategy != "token")
    peer_s = measure(peer, 30)
    alone_s = measure(lambda: masker.corrupt(batch, RATIO, 0, 0), 30)
    peer_alone_s = measure(peer.build_masking(), 30)
    num_tokens = batch.num_tokens()
    return {
        "tokens_per_s": num_tokens / ours_s,
        "peer_tokens_per_s": num_tokens / peer_s,
        "ratio": peer_s / ours_s,
        "masking_alone_ratio": peer_alone_s / alone_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variant", choices=list(mw.BERT.variants), help="default: tiny, on a GPU base")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    arguments.variant = arguments.variant or ("base" if arguments.device.startswith("cuda") else "tiny")
    torch.manual_seed(0)
    loader = build_loader(arguments)
    batch = next(loader.epoch(0))
    place = f"{arguments.device}, {arguments.precision}"
    print(f"BERT {arguments.variant}, {arguments.rows} rows of {arguments.length}, {place}")
    results = {}
    for strategy in STRATEGIES:
        figures = {**measure_share(arguments, batch, strategy), **measure_speed(arguments, loader, batch, strategy)}
        results[strategy] = figures
        print(
            f"{strategy:<10} {figures['mask_ms']:7.2f} of {figures['step_ms']:7.1f} ms a step, {figures['share']:6.2%};"
            f" from samples {figures['tokens_per_s'] / 1e6:5.2f}M tokens/s,"
            f" transformers {figures['peer_tokens_per_s'] / 1e6:5.2f}M, {figures['ratio']:.2f}x;"
            f" masking alone {figures['masking_alone_ratio']:.2f}x"
        )
    ratio = results["token"]["ratio"]
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
