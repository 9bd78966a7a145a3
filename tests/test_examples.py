"""The examples run, and do what they say."""

import importlib.util
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_minimal_example_learns_its_corpus(capsys):
    path = EXAMPLES / "minimal_mlm.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) < 80
    spec = importlib.util.spec_from_file_location("minimal_mlm", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main() >= 0.9
    assert "the cat [MASK] on the mat -> the cat sat on the mat" in capsys.readouterr().out
