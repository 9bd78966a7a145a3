"""Notebooks are kept without outputs, name what is there, and run from top to bottom with results that stand."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from snippets import list_mistakes

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CLAIMS = {
    "1-first-model": [
        "loss < baseline - 0.5",
        "run.figures['accuracy'] > 0.15",
        "[len(candidates) for candidates in answers] == [5]",
        "run.folder.report_file.is_file() and run.folder.model.is_dir()",
    ],
    "2-your-domain": [
        "figures['loss'] < figures['loss_before']",
        "figures['forgetting'] <= 0.5",
        "loss.difference < 0 and loss.p_value < 0.05",
        "not {record['file'] for record in split['train']} & {record['file'] for record in split['test']}",
        "min(accuracy['base'], accuracy['adapted']) > accuracy['majority']",
        "adapted.exported.is_dir()",
    ],
    "3-small-language": [
        "run.figures['loss'] < run.figures['unigram_loss'] - 0.5",
        "run.figures['loss'] < little.figures['loss']",
        "set(shares) == {'all', 'agreement', 'case', 'harmony', 'meaning'}",
        "shares['all'] > 0.8",
    ],
    "4-masks": [
        "all(abs(share - 0.3) < 0.05 for share in hidden.values())",
        "all(run.figures['loss'] < run.figures['unigram_loss'] for run in runs.values())",
        "len(moments) > 1 and moments[-1]['step'] == runs['token-40'].figures['steps']",
        "page.is_file()",
    ],
    "5-search": [
        "ndcg['retriever'].mean > 2 * ndcg['untrained'].mean",
        "len(hits) == 3 and hits[0].score >= hits[-1].score",
        "len(served) == 2 and largest < 1e-5",
        "server.returncode == 0",
    ],
}
"""Of each notebook, what must hold when it has run."""
LIVE = {"1-first-model": 1, "2-your-domain": 1, "3-small-language": 2, "4-masks": 4, "5-search": 1}
"""The least number of trainings whose curves are shown as they go."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def list_code(path: Path) -> list[str]:
    """Cells of code, and blocks of Python in the prose."""
    cells = read(path).cells
    shown = [block for cell in cells if cell.cell_type == "markdown" for block in find_blocks(cell.source)]
    return [cell.source for cell in cells if cell.cell_type == "code"] + shown


def find_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_there_are_five_with_claims_and_links_to_each() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(CLAIMS) == list(LIVE)
    page = (ROOT / "docs" / "notebooks.md").read_text("utf-8")
    assert [path.name for path in NOTEBOOKS if f"](../notebooks/{path.name})" not in page] == []
    for other in ("README.md", "docs/index.md"):
        assert "notebooks.md" in (ROOT / other).read_text("utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_has_no_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in code if cell.outputs or cell.execution_count is not None] == []
    assert [cell.id for cell in notebook.cells if cell.metadata] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_names_is_there(path: Path) -> None:
    code = list_code(path)
    assert any("mw." in block for block in code)
    assert [mistake for block in code for mistake in list_mistakes(block)] == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_its_results_stand(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install '.[notebook]'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook = read(path)
    claims = "\n".join(f"assert {claim}, {claim!r}" for claim in CLAIMS[path.stem])
    notebook.cells.append(nbformat.v4.new_code_cell(claims))
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.text for output in outputs if output.output_type == "stream"]
    assert [text for text in texts if "\x1b" in text or "Traceback" in text] == []
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    live = [page for page in pages if 'class="track"' in page and 'style="width: 100.0%"' in page]
    assert len([page for page in live if "<svg" in page]) >= LIVE[path.stem]
