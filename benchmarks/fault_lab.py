"""A folder with a text, an unbroken run, and runs to break beside it; what counts as the same result."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prestarted import Child, Prestarted
from safetensors.torch import load

MAX_STEPS = 48
_TIMED = ("tokens_per_s", "data_wait", "elapsed_s", "seconds", "first_step_s")
_RESUMED = re.compile(r"resuming .* from step (\d+)")
_WORDS = ("the", "cat", "dog", "sees", "follows", "river", "house", "bird", "old", "red", "green", "rain", "road")
_COMMAND = "prestarted:run_command"
_MODEL = {"family": "bert", "variant": "tiny", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_TRAINING = {
    "batch_tokens": 64,
    "max_steps": MAX_STEPS,
    "epochs": 100,
    "precision": "fp32",
    "device": "cpu",
    "checkpoint_every_steps": 2,
    "log_every_steps": 5,
    "evaluate_every_steps": 7,
    "keep_best": True,
    "average_decay": 0.9,
    "dead_process_seconds": 4.0,
}


@dataclass(frozen=True)
class Trial:
    fault: str
    seed: int
    resumed_step: int | None
    """None where the run came to its end by itself."""
    redone: int
    """Steps that were computed twice."""
    exit_s: float
    """From the fault until the process had ended."""
    problem: str = ""


def name_run(fault: str, seed: int) -> str:
    return f"{fault.replace(' ', '-')}-{seed}"


class Lab:
    """Runs of one configuration."""

    def __init__(
        self, folder: Path, prestarted: Prestarted, *, has_dropout: bool = True, tolerance: float = 0.0, **training: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.prestarted, self.tolerance = folder, prestarted, tolerance
        self._training = _TRAINING | training
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "mlm_head_dropout")
        self._model = _MODEL | dict.fromkeys(names, 0.1 if has_dropout else 0.0)
        generator = random.Random(0)
        lines = (" ".join(generator.choices(_WORDS, k=generator.randint(4, 12))) for _ in range(150))
        (folder / "text.txt").write_text("".join(f"{line}.\n" for line in lines))

    def run_unbroken(self, target: str = _COMMAND, **arguments: Any) -> None:
        begun = time.monotonic()
        child = self.start("unbroken", target, **arguments)
        if child.wait():
            raise RuntimeError(f"the unbroken run failed: {child.text()}")
        self.run_s = time.monotonic() - begun
        self.training_s = float(json.loads((self.folder / "unbroken" / "final.json").read_text())["seconds"])
        self.expected = read_result(self.folder / "unbroken")

    def start(self, name: str, target: str = _COMMAND, **arguments: Any) -> Child:
        return self.prestarted.start(target, {"words": self.words(name)} | arguments, self.folder / name)

    def start_ranks(self, name: str, size: int = 2) -> list[Child]:
        return self.prestarted.start_ranks(_COMMAND, {"words": self.words(name)}, self.folder / name, size)

    def words(self, name: str) -> list[str]:
        """The command that trains the run of this name, and resumes it."""
        values = {
            "run": {"out": str(self.folder), "name": name},
            "model": self._model,
            "tokenizer": {"vocab_size": 300},
            "data": {"train": str(self.folder / "text.txt"), "max_length": 16, "validation_share": 0.1},
            # With a small epsilon Adam makes full steps of what rounding leaves of a gradient of 0.
            "optimizer": {"learning_rate": 0.003, "epsilon": 0.1},
            "training": self._training,
        }
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(values))  # JSON is YAML
        return ["train", str(file)]

    def finish(
        self, fault: str, name: str, seed: int, *, broke_at: int, exit_s: float, problem: str = "", **command: Any
    ) -> Trial:
        """Go on with the same command, and compare with the unbroken run."""
        run, resumed = self.folder / name, None
        if not (run / "final.json").is_file():
            child = self.start(name, **command)
            if child.wait():
                problem = problem or f"resuming failed: {child.text()[-500:]}"
            found = _RESUMED.search(child.text())
            resumed = int(found.group(1)) if found else 0
        problem = problem or describe_difference(read_result(run), self.expected, self.tolerance)
        problem = problem or describe_leftovers(run)
        if not problem:
            shutil.rmtree(run)
        return Trial(fault, seed, resumed, 0 if resumed is None else max(0, broke_at - resumed), exit_s, problem)


def read_result(run: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on what happened to it."""
    if not (run / "final.json").is_file():
        return {"final": "missing"}
    return {
        "weights": (run / "model" / "model.safetensors").read_bytes(),
        "optimizer": (run / "checkpoints" / f"step-{MAX_STEPS}" / "optimizer.safetensors").read_bytes(),
        "best checkpoint": json.loads((run / "checkpoints" / "best.json").read_text()),
        "metrics": read_metrics(run),
        "figures": _without_times(json.loads((run / "final.json").read_text())),
    }


def read_metrics(run: Path) -> list[dict[str, Any]]:
    return [_without_times(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _TIMED}


def describe_difference(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> str:
    """Bit for bit, or numbers within a tolerance; empty where there is none."""
    differing = [name for name in expected if not _is_same(found.get(name), expected[name], tolerance)]
    return f"another result than the unbroken run's: {', '.join(differing)}" if differing else ""


def _is_same(found: Any, expected: Any, tolerance: float) -> bool:
    if tolerance == 0.0 or type(found) is not type(expected):
        return bool(found == expected)
    if isinstance(expected, bytes):
        return _is_same(load(found), load(expected), tolerance)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_is_same(found[key], expected[key], tolerance) for key in found)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_is_same, found, expected, [tolerance] * len(found)))
    if isinstance(expected, str):
        return bool(found == expected)
    difference = abs(found - expected)
    return float(difference if isinstance(difference, int | float) else difference.max()) <= tolerance


def describe_leftovers(run: Path) -> str:
    leftovers = [str(path.relative_to(run)) for path in run.rglob(".*")]
    return f"left behind: {', '.join(leftovers)}" if leftovers else ""


def last_step(run: Path) -> int:
    """The newest step that the run wrote about."""
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").is_file() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)


def wait_for_step(child: Child, run: Path, step: int, timeout_s: float = 200.0) -> None:
    deadline = time.monotonic() + timeout_s
    while child.poll() is None and last_step(run) < step:
        if time.monotonic() > deadline:
            child.send(signal.SIGKILL)
            raise TimeoutError(f"not at step {step} after {timeout_s} s; it said {child.text()}")
        time.sleep(0.002)
