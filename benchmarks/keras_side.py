"""The keras-hub side of `train_step.py`: the same rows, trained by another Python whose environment has keras-hub."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from step_sides import FAMILIES, FIRST, MASK, PAD, RATE, RATIO, pad_rows

NAME = "keras-hub"
SCRIPT = Path(__file__).parent / "peers" / "keras_hub_step.py"
LOSS_TOLERANCE = 0.05
"""How far the loss of untrained weights may be from that of a guess, as a share; larger models start further off."""
_ASK_VERSIONS = "from importlib.metadata import version as v; print('keras-hub', v('keras-hub') + ', jax', v('jax'))"


def read_versions(arguments: argparse.Namespace) -> str:
    """Of what the other environment holds; what cannot be compared there ends the run, before anything is timed."""
    if (arguments.family, arguments.precision, arguments.device) != ("bert", "fp32", "cpu"):
        raise SystemExit("--keras measures bert in fp32 on the CPU; leave it out for others")
    try:
        asked = subprocess.run([arguments.keras, "-c", _ASK_VERSIONS], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"--keras {arguments.keras} cannot be run ({error.strerror}); give a Python") from error
    if asked.returncode:
        raise SystemExit(f"the environment of {arguments.keras} lacks keras-hub or jax; install both there")
    return asked.stdout.strip()


def measure_keras(
    arguments: argparse.Namespace, dropout: float, num_warm_up: int, reference: torch.nn.Module
) -> dict[str, Any]:
    """Its figures, in a process of its own; `reference` is a model of the shape that it must have."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = build_settings(arguments, dropout, num_warm_up)
        (folder / "settings.json").write_text(json.dumps(settings))
        batches = [
            pad_rows(arguments.texts, number, arguments.rows, arguments.length)
            for number in range(num_warm_up + arguments.steps)
        ]
        np.savez(folder / "rows.npz", token_ids=np.array(batches, dtype=np.int32))
        figures = run_script([str(arguments.keras), str(SCRIPT), name])
    check_same_task(figures, arguments.vocab_size, reference)
    return figures


def build_settings(arguments: argparse.Namespace, dropout: float, num_warm_up: int) -> dict[str, Any]:
    shape = FAMILIES[arguments.family].build_config(arguments.variant)
    backbone = {
        "vocabulary_size": arguments.vocab_size,
        "num_layers": shape.num_hidden_layers,
        "num_heads": shape.num_attention_heads,
        "hidden_dim": shape.hidden_size,
        "intermediate_dim": shape.intermediate_size,
        "dropout": dropout,
        "max_sequence_length": arguments.length,
    }
    return {
        "backbone": backbone,
        "learning_rate": RATE,
        "mask_ratio": RATIO,
        "mask_token_id": MASK,
        "pad_token_id": PAD,
        "special_token_ids": list(range(FIRST)),
        "num_warm_up": num_warm_up,
    }


def run_script(command: list[str]) -> dict[str, Any]:
    """What the script printed last, run with as many threads as torch has here."""
    # XLA sizes its pool of threads by NPROC where that is set, by the cores of the machine otherwise
    threads = {"NPROC": str(torch.get_num_threads()), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    environment = {**os.environ, **threads, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def check_same_task(figures: dict[str, Any], vocab_size: int, reference: torch.nn.Module) -> None:
    """As many weights, and at first the loss of a guess among all words; anything else ends the run."""
    num_expected = sum(param.numel() for param in reference.parameters())
    if figures["num_parameters"] != num_expected:
        raise SystemExit(f"keras-hub's model has {figures['num_parameters']:,} weights, transformers' {num_expected:,}")
    guess = math.log(vocab_size)
    if abs(figures["first_loss"] / guess - 1) > LOSS_TOLERANCE:
        raise SystemExit(f"keras-hub's first loss is {figures['first_loss']:.3f}, that of a guess {guess:.3f}")
