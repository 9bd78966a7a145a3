"""The folder of `--to web`: a page for each kind of question, the quantized graph and the library, and nothing else."""

from __future__ import annotations

import io
import json
import re
import stat
import sys
import tarfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError, RunError
from maskwright.export.layout import check_layout
from maskwright.export.web import open_library, write_page
from maskwright.runs.export_options import ExportOptions

CLASSES = {
    "fill-mask": "BertForMaskedLM",
    "text-classification": "BertForSequenceClassification",
    "token-classification": "BertForTokenClassification",
    "question-answering": "BertForQuestionAnswering",
    "feature-extraction": "BertModel",
}
LIBRARY_FILES = {
    "@huggingface/transformers": {
        "dist/transformers.min.js": "library",
        "LICENSE": "terms",
        "package.json": '{"dependencies": {"onnxruntime-web": "1.2.3"}}',
    },
    "onnxruntime-web": {"dist/ort-wasm-simd-threaded.mjs": "m", "dist/ort-wasm-simd-threaded.wasm": "w"},
}


def ignore(line: str) -> None:
    pass


def write_all(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder as `npm install --prefix` leaves it."""
    for package, files in LIBRARY_FILES.items():
        write_all(tmp_path / "npm" / "node_modules" / package, files)
    return tmp_path / "npm"


def write_graphs(folder: Path, task: str) -> None:
    """What the export to ONNX leaves."""
    files = {
        "config.json": json.dumps({"model_type": "bert", "architectures": [CLASSES[task]]}),
        "tokenizer.json": "{}",
        "tokenizer_config.json": '{"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}',
        "special_tokens_map.json": "{}",
        **dict.fromkeys(("model.onnx", "model_int8.onnx", "onnx/model.onnx", "onnx/model_quantized.onnx"), "graph"),
    }
    if task == "feature-extraction":
        names = ("sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")
        files |= {"modules.json": "[]", **dict.fromkeys(names, "{}")}
    write_all(folder, files)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def list_values(self, name: str, *tags: str) -> list[str | None]:
        return [attrs.get(name) for tag, attrs in self.found if tag in tags]


@pytest.mark.parametrize("task", CLASSES)
def test_a_page_has_what_its_kind_of_question_needs(task: str, installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_graphs(folder / "model", task)
    with open_library(installed, ignore) as library:
        write_page(folder, "mine & yours", library)
    (folder / "README.md").write_text("card")
    check_layout(folder, "web")
    assert json.loads((folder / "settings.json").read_text())["task"] == task
    assert sorted(path.name for path in (folder / "model").rglob("*.onnx")) == ["model_quantized.onnx"]
    assert (folder / "vendor" / "LICENSE.transformers.js.txt").read_text() == "terms"
    page = (folder / "index.html").read_text()
    assert "<title>mine &amp; yours</title>" in page
    elements = Elements(page)
    fields = elements.list_values("id", "textarea", "input")
    assert fields
    assert elements.list_values("for", "label") == fields
    script = (folder / "page.js").read_text()
    own = script[script.index(f'"{task}": async') :].split("\n  },\n")[0]
    assert set(re.findall(r'find\("([a-z]+)"\)', own)) == set(fields)


def test_a_page_names_no_other_host(installed: Path, tmp_path: Path) -> None:
    write_graphs(tmp_path / "out" / "model", "fill-mask")
    with open_library(installed, ignore) as library:
        write_page(tmp_path / "out", "mine", library)
    for name in ("index.html", "page.js", "page.css"):
        assert "//" not in re.sub(r"^ *//.*$|; // .*$", "", (tmp_path / "out" / name).read_text(), flags=re.MULTILINE)
    assert "connect-src 'self'" in (tmp_path / "out" / "index.html").read_text()


def test_what_the_folder_of_the_library_lacks_is_named(installed: Path, tmp_path: Path) -> None:
    (installed / "node_modules/onnxruntime-web/dist/ort-wasm-simd-threaded.wasm").unlink()
    with pytest.raises(InputError, match=r"ort-wasm-simd-threaded\.wasm is missing"), open_library(installed, ignore):
        pass
    with pytest.raises(InputError, match="npm install --prefix"), open_library(tmp_path, ignore):
        pass


def pack(folder: Path, files: dict[str, str], name: str) -> None:
    """As npm packs them."""
    with tarfile.open(folder / name, "w:gz") as packed:
        for path, content in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(content)
            packed.addfile(member, io.BytesIO(content.encode()))


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in npm's place, which knows two packages; the folder that it writes what it is asked for into."""
    place = tmp_path / "bin"
    place.mkdir()
    for number, files in enumerate(LIBRARY_FILES.values()):
        pack(place, files, f"{number}.tgz")
    program = place / "npm"
    program.write_text(
        f"#!{sys.executable}\nimport shutil, sys\nfrom pathlib import Path\nhere = Path(__file__).parent\n"
        "print(sys.argv[2], file=(here / 'asked').open('a'))\n"
        "number = {'@huggingface/transformers': 0, 'onnxruntime-web': 1}[sys.argv[2].rpartition('@')[0]]\n"
        "shutil.copy(here / f'{number}.tgz', sys.argv[-1])\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(place))
    return place


def test_the_library_comes_from_npm_with_the_runtime_that_it_names(npm: Path) -> None:
    said: list[str] = []
    with open_library(None, said.append) as library:
        assert (library / "transformers.min.js").read_text() == "library"
        assert (library / "ort-wasm-simd-threaded.wasm").read_text() == "w"
    assert (npm / "asked").read_text().splitlines()[1] == "onnxruntime-web@1.2.3"
    assert "from npm" in said[0]


def test_npm_that_fails_or_is_absent_is_said(npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (npm / "npm").write_text("#!/bin/sh\necho 'no network' >&2\nexit 1\n")
    with pytest.raises(InputError, match=r"npm cannot get .* \(no network\); give"), open_library(None, ignore):
        pass
    monkeypatch.setenv("PATH", str(npm / "absent"))
    with pytest.raises(InputError, match="which is not installed"), open_library(None, ignore):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "web", "int8": True}, "--int8 is for --to onnx or --to gguf, this is --to web"),
        ({"target": "onnx", "transformers_js": Path("x")}, "--transformers-js is for --to web"),
        ({"target": "hf", "purpose": "embed"}, "--for is for --to onnx or --to web"),
    ],
)
def test_options_of_other_formats_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ExportOptions(**options)


@pytest.mark.parametrize("lost", ["onnx/model_quantized.onnx", "special_tokens_map.json", "modules.json"])
def test_a_folder_without_what_it_promises_is_refused(tmp_path: Path, lost: str) -> None:
    write_graphs(tmp_path, "feature-extraction")
    (tmp_path / "README.md").write_text("card")
    check_layout(tmp_path, "onnx")
    (tmp_path / lost).unlink()
    target = "sentence-transformers" if lost == "modules.json" else "onnx"
    with pytest.raises(RunError, match=f"the export lacks .*{lost}"):
        check_layout(tmp_path, target)


def test_names_that_programs_look_for_are_checked(tmp_path: Path) -> None:
    write_graphs(tmp_path, "fill-mask")
    (tmp_path / "README.md").write_text("card")
    (tmp_path / "config.json").write_text('{"model_type": "bert", "max_position_embeddings": 8}')
    with pytest.raises(RunError, match=r"lacks 'architectures' in config.json, 'model_max_length' in tokenizer_config"):
        check_layout(tmp_path, "onnx")
