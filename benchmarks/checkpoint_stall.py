"""What a checkpoint costs the training that goes on: in the background, in the foreground, and as others write it.

A checkpoint holds weights and optimizer state. The peer is `torch.save` of both between two steps, which is how
`transformers.Trainer` writes one. The cost is measured on the whole run, so work that a background thread takes from
the computing cores counts.

    python benchmarks/checkpoint_stall.py --variant tiny --every 20
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import maskwright as mw
from maskwright.training.checkpoints import Retention

FIRST = 5


class SaveEvery(mw.Callback):
    """Calls `save` after every so many steps and notes how long each call held the loop up."""

    def __init__(self, every: int, save: Callable[[mw.Trainer], object] | None) -> None:
        self.every, self.save = every, save
        self.stalls_s: list[float] = []
        self.begun_s = self.ended_s = 0.0

    def on_step_end(self, step: int) -> None:
        if step == self.every:  # the steps until then warm up
            self._wait()
            self.begun_s = time.perf_counter()
        elif self.save is not None and step % self.every == 0:
            self._wait()
            begun = time.perf_counter()
            self.save(self.trainer)
            self.stalls_s.append(time.perf_counter() - begun)

    def on_train_end(self) -> None:
        self.trainer.finish_writing()
        self._wait()
        self.ended_s = time.perf_counter()

    def _wait(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def build_trainer(arguments: argparse.Namespace) -> mw.Trainer:
    torch.manual_seed(0)
    encoder = mw.BERT.from_variant(
        arguments.variant, vocab_size=arguments.vocab_size, max_position_embeddings=arguments.length
    )
    model = mw.MaskedLanguageModel(encoder, arguments.vocab_size, mask_token_id=4, special_token_ids=range(FIRST))
    num_steps = arguments.every * (arguments.saves + 1) + arguments.every // 2
    training = mw.TrainingConfig(
        device=arguments.device, precision=arguments.precision, max_steps=num_steps, log_every_steps=num_steps
    )
    return mw.Trainer(model, training=training)


def measure(arguments: argparse.Namespace, save: Callable[[mw.Trainer], object] | None) -> dict[str, float]:
    trainer = build_trainer(arguments)
    ids = torch.randint(FIRST, arguments.vocab_size, (arguments.rows, arguments.length))
    callback = SaveEvery(arguments.every, save)
    trainer.fit([ids] * 64, epochs=1000, callbacks=[callback], verbose=False)
    num_steps = trainer.state.step - arguments.every
    stalls = callback.stalls_s
    return {
        "step_ms": 1e3 * (callback.ended_s - callback.begun_s) / num_steps,
        "first_stall_ms": 1e3 * stalls[0] if stalls else 0.0,
        "stall_ms": 1e3 * statistics.median(stalls[1:] or [0.0]),
    }


def save_as_peer(folder: Path) -> Callable[[mw.Trainer], object]:
    def save(trainer: mw.Trainer) -> None:
        torch.save(trainer.model.state_dict(), folder / "pytorch_model.bin")
        torch.save([one.state_dict() for one in trainer.optimizers.optimizers], folder / "optimizer.pt")

    return save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="tiny", choices=list(mw.BERT.variants))
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    keep = Retention(last=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways: dict[str, Callable[[mw.Trainer], object] | None] = {
            "none": None,
            "background": lambda trainer: trainer.save_checkpoint(folder, retention=keep, background=True),
            "foreground": lambda trainer: trainer.save_checkpoint(folder, retention=keep),
            "torch.save": save_as_peer(folder),
        }
        results = {way: measure(arguments, save) for way, save in ways.items()}
    baseline = results["none"]["step_ms"]
    print(
        f"BERT {arguments.variant}, {arguments.rows} rows of {arguments.length}, {arguments.device},"
        f" {arguments.precision}, a checkpoint every {arguments.every} steps"
    )
    for way, figures in results.items():
        figures["cost"] = figures["step_ms"] / baseline - 1
        print(
            f"{way:<11} {figures['step_ms']:9,.1f} ms a step  {figures['cost']:+7.1%} of step time"
            f"  {figures['stall_ms']:9,.1f} ms standing still per save (the first {figures['first_stall_ms']:,.1f})"
        )
    ratio = results["torch.save"]["stall_ms"] / results["background"]["stall_ms"]
    if arguments.json:
        arguments.json.write_text(json.dumps({**results, "ratio": ratio}, indent=2) + "\n")
    print(f"ratio {ratio:.2f}x")


if __name__ == "__main__":
    main()
