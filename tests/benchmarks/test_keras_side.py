"""The keras-hub side of the training-step benchmark, with a stand-in for the environment that has keras-hub."""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import keras_side
import pytest
import torch
from step_sides import CLS, PAD, SEP, Peer, make_documents
from train_step import compare, measure_second_peer

_VOCAB_SIZE = 100
_STAND_IN = """
import json, os, sys
from pathlib import Path
import numpy as np

folder = Path(sys.argv[1])
rows = np.load(folder / "rows.npz", allow_pickle=False)["token_ids"]
settings = json.loads((folder / "settings.json").read_text())
print("a line of some library")
print(json.dumps({
    "tokens_per_s": 2e6, "first_loss": FIRST_LOSS, "num_parameters": NUM_PARAMETERS, "rows": rows.tolist(),
    "settings": settings, "threads": os.environ["NPROC"], "backend": os.environ["KERAS_BACKEND"],
}))
"""


@pytest.fixture
def arguments() -> argparse.Namespace:
    return argparse.Namespace(
        family="bert",
        variant="tiny",
        length=16,
        rows=2,
        vocab_size=_VOCAB_SIZE,
        steps=2,
        precision="fp32",
        device="cpu",
        keras=Path(sys.executable),
        texts=make_documents(8, 16, _VOCAB_SIZE, is_dense=False),
    )


def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_loss: float, num_parameters: int) -> None:
    script = tmp_path / "stand_in.py"
    script.write_text(
        _STAND_IN.replace("FIRST_LOSS", str(first_loss)).replace("NUM_PARAMETERS", str(num_parameters)),
    )
    monkeypatch.setattr(keras_side, "SCRIPT", script)


def test_keras_gets_the_rows_of_transformers(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(arguments, is_compiled=False, dropout=0.1)
    num_parameters = sum(param.numel() for param in peer.model.parameters())
    _stand_in(tmp_path, monkeypatch, 4.7, num_parameters)
    row = measure_second_peer(0.1, arguments)
    theirs = torch.tensor(row["rows"])
    batches = peer.make_batches(arguments.texts, len(theirs))
    assert len(theirs) == 5  # three to warm up
    for ids, batch in zip(theirs, batches, strict=True):
        assert torch.equal(ids != PAD, batch["attention_mask"].bool())
        assert torch.equal(ids[batch["labels"] >= 0], batch["labels"][batch["labels"] >= 0])
        assert (ids[:, 0] == CLS).all()
        assert ((ids == SEP).sum(1) == 1).all()


def test_keras_runs_with_our_threads_and_shape(
    arguments: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _stand_in(tmp_path, monkeypatch, 4.7, 7)
    monkeypatch.setattr(keras_side, "check_same_task", lambda *_: None)
    row = measure_second_peer(0.2, arguments)
    assert (row["threads"], row["backend"]) == (str(torch.get_num_threads()), "jax")
    assert row["settings"]["backbone"] == {
        "vocabulary_size": _VOCAB_SIZE,
        "num_layers": 4,
        "num_heads": 4,
        "hidden_dim": 256,
        "intermediate_dim": 1024,
        "dropout": 0.2,
        "max_sequence_length": 16,
    }
    assert (row["side"], row["compiled"], row["dropout"]) == ("keras-hub", True, 0.2)
    assert row["model_tflops"] > 0


@pytest.mark.parametrize(
    ("first_loss", "num_parameters", "said"),
    [(4.7, 2, "has 2 weights, transformers' 3"), (6.0, 3, r"first loss is 6\.000, that of a guess 4\.605")],
)
def test_another_task_ends_the_run(first_loss: float, num_parameters: int, said: str) -> None:
    figures = {"first_loss": first_loss, "num_parameters": num_parameters}
    with pytest.raises(SystemExit, match=said):
        keras_side.check_same_task(figures, _VOCAB_SIZE, torch.nn.Linear(2, 1))


def test_a_failing_script_shows_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('no such layer')")
    with pytest.raises(SystemExit, match="no such layer"):
        keras_side.run_script([sys.executable, str(script)])


@pytest.mark.parametrize("changes", [{"device": "cuda"}, {"family": "modernbert"}, {"precision": "bf16"}])
def test_what_keras_is_not_measured_on_is_refused(arguments: argparse.Namespace, changes: dict[str, str]) -> None:
    vars(arguments).update(changes)
    with pytest.raises(SystemExit, match="--keras measures bert in fp32 on the CPU"):
        keras_side.read_versions(arguments)


def test_an_environment_without_keras_hub_is_refused(arguments: argparse.Namespace) -> None:
    arguments.keras = shutil.which("false")
    with pytest.raises(SystemExit, match="lacks keras-hub or jax"):
        keras_side.read_versions(arguments)
    arguments.keras = Path("no/such/python")
    with pytest.raises(SystemExit, match="cannot be run"):
        keras_side.read_versions(arguments)


def test_ratios_are_over_the_fastest_row_of_each_peer() -> None:
    speeds = [
        ("transformers", 100),
        ("transformers", 200),
        ("keras-hub", 400),
        ("maskwright", 900),
        ("maskwright", 800),
    ]
    rows = [{"side": side, "dropout": 0.1, "real_tokens_per_s": speed} for side, speed in speeds]
    rows.append({"side": "transformers", "dropout": 0.0, "real_tokens_per_s": 1e6})
    assert compare(rows, 0.1) == {"speed": 4.5, "speed_over_keras_hub": 2.25}


def test_the_script_needs_only_its_own_environment() -> None:
    tree = ast.parse(keras_side.SCRIPT.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    foreign = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    assert foreign == {"keras", "keras_hub", "numpy"}


@pytest.mark.draws
def test_rows_of_keras_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    import chart

    rows: list[dict[str, Any]] = [
        {"side": side, "compiled": True, "dropout": 0.1, "real_tokens_per_s": 1e3}
        for side in ("transformers", "keras-hub", "maskwright")
    ]
    (tmp_path / "one.json").write_text(json.dumps({"title": "a step", "machine": "a machine", "rows": rows}))
    out = tmp_path / "speed.png"
    monkeypatch.setattr(sys, "argv", ["chart.py", "--results", str(tmp_path), "--out", str(out)])
    chart.main()
    assert out.stat().st_size > 0
