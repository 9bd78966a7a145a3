"""The examples run, and do what they say."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SMALL = """{
    "training.max_steps": 2, "training.max_seconds": None, "training.batch_tokens": 256, "training.precision": "fp32",
    "tokenizer.vocab_size": 160, "data.max_length": 32, "model.hidden_size": 32, "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
}"""
"""Settings that make runs of the manual a matter of seconds."""


@pytest.mark.slow  # it learns for seconds; the manual's examples run below
def test_the_minimal_example_learns_its_corpus(capsys):
    path = EXAMPLES / "minimal_mlm.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    spec = importlib.util.spec_from_file_location("minimal_mlm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() >= 0.9
    assert "the cat [MASK] on the mat -> the cat sat on the mat" in capsys.readouterr().out


def test_the_examples_of_the_python_manual_run(corpus_file, tmp_path, monkeypatch):
    """One after another, as a reader would type them, on small files and with small runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("maskwright.runs.doctor.step._MOST_TIMED", 2)
    for name in ("finetune.finetune.write_task_report", "pretrain.write_report"):  # pictures take seconds
        monkeypatch.setattr(f"maskwright.runs.{name}", lambda *given, **named: [])
    corpus = corpus_file.read_text(encoding="utf-8")
    Path("corpus.txt").write_text(corpus, encoding="utf-8")
    Path("notes.txt").write_text(corpus.replace("cat", "otter"), encoding="utf-8")
    rows = ["the cat likes it,good", "a dog sees it,bad"]
    for name in ("train.csv", "dev.csv"):
        Path(name).write_text("text,label\n" + "\n".join(rows * 4) + "\n", encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 7
    script = "\n".join(blocks).replace('"run.name": "mine"', f'"run.name": "mine", **{SMALL}')
    script = script.replace(
        '"training.epochs": 1', '"training.epochs": 1, "training.max_steps": 2, "data.max_length": 32'
    )
    Path("manual.py").write_text(script, encoding="utf-8")
    names = runpy.run_path("manual.py")
    assert set(names["finished"].scores) >= {"loss", "accuracy"}
    assert len(Path("answers.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    assert Path("vectors/modules.json").is_file()
