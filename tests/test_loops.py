"""The examples of docs/loops.md run as they stand, on a small model."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

PAGE = Path(__file__).parent.parent / "docs" / "loops.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def _small_files(
    tokenizer: Tokenizer, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    encoder = build_tiny_bert(tokenizer, hidden_size=16, num_hidden_layers=1, max_position_embeddings=64)
    mw.MaskedLanguageModel(encoder, tokenizer=tokenizer).save_pretrained(tmp_path / "bert-base-uncased", tokenizer)
    (tmp_path / "notes.txt").write_text("\n".join(sentences), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_block(word: str) -> dict[str, Any]:
    (block,) = (one for one in BLOCKS if word in one)
    names: dict[str, Any] = {"__name__": "block"}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_the_page_has_these_examples() -> None:
    assert len(BLOCKS) == 4


def test_transformers_trains_with_our_masks() -> None:
    assert run_block("TrainingArguments(")["trainer"].state.global_step == 3


def test_a_plain_loop_changes_the_model_it_saves() -> None:
    run_block("loss.backward()")
    before, after = (mw.BERT.from_pretrained(name).state_dict() for name in ("bert-base-uncased", "looped"))
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


class LightningModule(torch.nn.Module):
    def log(self, name: str, value: Any) -> None:
        self.logged = {name: float(value)}


class StandInTrainer:
    """What Lightning's does with a module, in one process."""

    def __init__(self, max_steps: int, **options: Any) -> None:
        self.max_steps = max_steps

    def fit(self, module: Any, loader: Any) -> None:
        optimizer = module.configure_optimizers()
        for step, batch in enumerate(loader):
            if step == self.max_steps:
                break
            optimizer.zero_grad()
            module.training_step(batch, step).backward()
            optimizer.step()


@pytest.mark.draws  # Lightning imports pyplot, which looks at the class of figures
def test_a_lightning_module_trains_our_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Lightning where it is installed, else with what this example uses of it."""
    try:
        import lightning  # noqa: F401
    except ImportError:
        stand_in = ModuleType("lightning")
        vars(stand_in).update(LightningModule=LightningModule, Trainer=StandInTrainer)
        monkeypatch.setitem(sys.modules, "lightning", stand_in)
    assert run_block("lightning.Trainer(")["module"].model.training  # the trainer leaves the mode as it is
    before, after = (mw.BERT.from_pretrained(name).state_dict() for name in ("bert-base-uncased", "from-lightning"))
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_scikit_learn_searches_and_saves() -> None:
    pytest.importorskip("sklearn")
    names = run_block("GridSearchCV(")
    assert names["search"].best_params_["learning_rate"] in (5e-5, 1e-4)
    assert mw.predict("classify", "best", ["the cat likes it"])[0]["label"] in ("good", "bad")
