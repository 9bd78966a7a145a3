from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.config import build_config
from maskwright.runs.doctor.memory import (
    MemoryNeed,
    add_working_memory,
    check_need,
    count_state_bytes,
    estimate_fixed_need,
)
from maskwright.runs.doctor.settings import check_disk, count_checkpoints, estimate_checkpoint_bytes
from maskwright.runs.doctor.step import measure_peak, measure_steps

CPU = torch.device("cpu")


class TestMemory:
    @pytest.mark.parametrize(
        "kind",
        [
            "adamw",
            "muon",
            "novograd",
            *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("stable_adamw", "lamb", "lion", "sgd")),
        ],
    )
    def test_the_optimizer_keeps_what_was_foretold(self, build_run: Callable[..., Any], kind: str) -> None:
        _, data, trainer = build_run(optimizer={"type": kind})
        foretold = count_state_bytes(trainer.optimizers)
        measure_steps(trainer, data.train, 0.15)
        kept = sum(tensor.nbytes for tensor in trainer.optimizers.state_tensors().values())
        assert foretold == pytest.approx(kept, rel=0.01)

    def test_the_peak_counts_what_lives_at_the_same_time(self) -> None:
        kept = torch.zeros(1000)

        def work() -> None:
            kept.add_(1.0)  # no new memory
            first = torch.ones(2000)
            del first
            pair = [torch.ones(3000), torch.ones(500)]
            pair[0].view(10, 300).mul_(2)

        assert measure_peak(CPU, work) == 4 * 3500

    def test_fewer_tokens_at_a_time_and_recomputation_need_less(self, build_run: Callable[..., Any]) -> None:
        def measure(**training: Any) -> int:
            _, data, trainer = build_run(training=training, model={"num_hidden_layers": 4})
            return measure_steps(trainer, data.train, 0.15).working_bytes

        whole, parts = measure(), measure(micro_batch_tokens=64)
        assert parts < 0.8 * whole
        assert measure(micro_batch_tokens=None, activation_checkpointing=True) < 0.8 * whole

    @pytest.mark.parametrize(
        ("capacity", "verdict", "advice"),
        [
            (2000, "OK", ""),
            (1050, "warning", "set training.micro_batch_tokens=72,"),
            (900, "problem", "set training.micro_batch_tokens=54,"),
            (200, "problem", "take a smaller model"),
        ],
    )
    def test_the_verdict_follows_from_the_share(self, capacity: int, verdict: str, advice: str) -> None:
        need = MemoryNeed(weights=100, optimizer=200, gradients=100)
        finding = check_need(add_working_memory(need, 700, tokens_at_a_time=80), capacity)
        assert "activations 600 bytes" in finding.text
        assert finding.verdict == verdict
        assert finding.advice.startswith(advice)

    def test_text_that_fills_the_memory_belongs_in_shards(self) -> None:
        finding = check_need(MemoryNeed(weights=1, optimizer=2, gradients=1, program=100), 100)
        assert "maskwright prepare" in finding.advice


class TestDisk:
    def test_a_checkpoint_is_about_as_large_as_foretold(self, build_run: Callable[..., Any], tmp_path: Path) -> None:
        # Wide enough for the tensors to outweigh the small files around them.
        _, data, trainer = build_run(model={"hidden_size": 256}, training={"average_decay": 0.9})
        trainer.fit(data.train, epochs=1, verbose=False)
        checkpoint = trainer.save_checkpoint(tmp_path, data.tokenizer)
        written = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        assert estimate_checkpoint_bytes(estimate_fixed_need(trainer.engine), data.tokenizer) == pytest.approx(
            written, rel=0.02
        )

    @pytest.mark.parametrize(
        ("settings", "number"),
        [
            ({}, 3),
            ({"keep_checkpoints": 5}, 6),
            ({"keep_every_steps": 2000}, 8),
            ({"keep_best": True, "early_stopping_patience": 2}, 5),
            ({"checkpoint_every_steps": 9_000}, 2),
        ],
    )
    def test_checkpoints_are_counted_as_the_run_keeps_them(self, settings: dict[str, Any], number: int) -> None:
        training = build_config({"training": settings}).training
        assert count_checkpoints(training, num_steps=10_000) == number

    @pytest.mark.parametrize(("free", "verdict"), [(1000, "OK"), (340, "warning"), (300, "problem")])
    def test_the_verdict_follows_from_the_free_space(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, verdict: str
    ) -> None:
        usage = namedtuple("usage", ["total", "used", "free"])
        asked: list[Path] = []
        monkeypatch.setattr("shutil.disk_usage", lambda place: asked.append(place) or usage(0, 0, free))
        assert check_disk(tmp_path / "not" / "there", 100, 3, model_bytes=30).verdict == verdict
        assert asked == [tmp_path]
