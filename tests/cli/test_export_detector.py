"""`maskwright export` of runs with training.mode=rtd: ELECTRA's layout, the encoder alone, or a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from maskwright.config import build_config
from maskwright.objectives.token_detector import TokenDetector
from maskwright.runs.pretrain import pretrain
from tolerances import assert_rounded, count_terms

Command = Callable[..., Any]


@pytest.fixture
def train_detector(tiny_values: dict[str, Any]) -> Callable[..., Path]:
    def train(**model: Any) -> Path:
        values = copy.deepcopy(tiny_values)
        values["training"] |= {"mode": "rtd", "max_steps": 2}
        values["model"] |= model
        return pretrain(build_config(values), console=Console(quiet=True)).folder.path

    return train


def test_the_detector_is_read_by_transformers_with_the_same_logits(
    command: Command, train_detector: Callable[..., Path], corpus_file: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    run = train_detector()
    result = command("export", run, "--out", tmp_path / "out", "--text", corpus_file, "--license", "mit")
    assert (result.code, result.err) == (0, "")
    assert "the generator stays behind" in result.out
    assert "logits of 8 texts" in result.out
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == "ElectraForPreTraining"
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("the cat", "a road", return_tensors="pt")
    assert encoded["token_type_ids"].tolist()[0][-1] == 1, "segments are told apart"
    ours = TokenDetector.from_pretrained(run)
    with torch.no_grad():
        num_terms = count_terms(num_layers=2, width=32, length=32)
        assert_rounded(theirs(**encoded).logits, ours(**encoded).logits, num_terms, magnitude=1.0)
    figures = json.loads((run / "final.json").read_text(encoding="utf-8"))
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"| area under the ROC curve | {figures['replaced_auc']:,.4f} |" in card
    assert "license: mit" in card
    assert (tmp_path / "out" / "training_config.yaml").is_file()


def test_of_another_family_the_encoder_alone_is_exported(
    command: Command, train_detector: Callable[..., Path], corpus_file: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    run = train_detector(family="modernbert")
    words = ("export", run, "--out", tmp_path / "out", "--text", corpus_file)
    command(*words).assert_refused("no ModernBERT that detects replaced tokens", "--to sentence-transformers")
    assert not (tmp_path / "out").exists()
    result = command(*words, "--to", "sentence-transformers")
    assert (result.code, result.err) == (0, "")
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "out")).__name__ == "ModernBertModel"
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "No figures on held-out text are known" in card


def test_what_does_not_hold_or_ask_a_detector_says_what_to_do(
    command: Command, train_detector: Callable[..., Path], corpus_file: Path, tmp_path: Path
) -> None:
    run = train_detector()
    words = ("export", run, "--to", "onnx", "--out", tmp_path / "out", "--text", corpus_file)
    command(*words).assert_refused("training.mode=rtd", "export it --to hf")
    command("eval", run, "mlm", corpus_file).assert_refused("predicts none", "eval embeddings or eval glue", "export")
    assert not (tmp_path / "out").exists()
