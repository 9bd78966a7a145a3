"""Write a page that runs a graph in the browser, with the library it needs: nothing comes from another host."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

from maskwright.errors import InputError
from maskwright.export.onnx import BROWSER_FOLDER, BROWSER_NAMES, INT8_FILE, MODEL_FOLDER
from maskwright.export.task_card import find_use
from maskwright.models.files.model_folder import CONFIG_FILE, MODULES_FILE
from maskwright.storage import read_json, write_text
from maskwright.text.tokenizer.files import SETTINGS_FILE

PAGE_FILES = ("index.html", "page.js", "page.css", "settings.json")
_LIBRARY = "@huggingface/transformers"
_VERSION = "4.3.1"
"""The one the page was tested with."""
_RUNTIME = "onnxruntime-web"
_SCRIPT = "transformers.min.js"
_RUNTIME_FILES = {"mjs": "ort-wasm-simd-threaded.mjs", "wasm": "ort-wasm-simd-threaded.wasm"}
_NPM_SECONDS = 600
_BUTTONS = {
    "fill-mask": "Fill",
    "text-classification": "Classify",
    "token-classification": "Find entities",
    "question-answering": "Answer",
    "feature-extraction": "Compare",
}
"""By the hub's name of what a graph is for; each has a form of that name."""


def write_page(folder: Path, name: str, library: Path) -> None:
    """Turn `folder`, whose MODEL_FOLDER is an ONNX export with int8, into a page; `library` is of `open_library`."""
    model = folder / MODEL_FOLDER
    task = _find_task(model)
    _keep_quantized(model)
    shutil.copytree(library, folder / "vendor")
    page = files("maskwright").joinpath("export", "page")
    form = page.joinpath("forms", f"{task}.html").read_text(encoding="utf-8").rstrip("\n")
    whole = Template(page.joinpath("index.html").read_text(encoding="utf-8"))
    write_text(folder / "index.html", whole.substitute(title=escape(name), form=form, button=_BUTTONS[task]))
    for file in ("page.js", "page.css"):
        write_text(folder / file, page.joinpath(file).read_text(encoding="utf-8"))
    inputs = read_json(model / SETTINGS_FILE)["model_input_names"]
    settings = {"task": task, "has_segments": "token_type_ids" in inputs, "runtime": _RUNTIME_FILES}
    write_text(folder / "settings.json", json.dumps(settings, indent=2) + "\n")


def _find_task(model: Path) -> str:
    if (model / MODULES_FILE).is_file():
        return "feature-extraction"
    use = find_use(read_json(model / CONFIG_FILE)["architectures"][0])
    return "fill-mask" if use is None else use.tag


def _keep_quantized(model: Path) -> None:
    """Remove the graphs that the page does not open."""
    kept = BROWSER_NAMES[INT8_FILE]
    for graph in [*model.glob("*.onnx*"), *(model / BROWSER_FOLDER).iterdir()]:
        if graph.parent == model or not graph.name.startswith((kept, f"{INT8_FILE}_data")):
            graph.unlink()


@contextmanager
def open_library(given: Path | None, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder with Transformers.js and the runtime's WebAssembly, of a folder that npm made or of npm's registry."""
    with TemporaryDirectory() as temporary:
        place = Path(temporary) / "vendor"
        place.mkdir()
        if given is None:
            say(f"getting {_LIBRARY} {_VERSION} from npm")
        library, runtime = _fetch(Path(temporary)) if given is None else _find(given)
        wanted = [library / "dist" / _SCRIPT, *(runtime / "dist" / file for file in _RUNTIME_FILES.values())]
        for file in wanted:
            if not file.is_file():
                raise InputError(f"{file} is missing; expected {_LIBRARY} {_VERSION} with its {_RUNTIME}")
            shutil.copyfile(file, place / file.name)
        for package, name in ((library, "transformers.js"), (runtime, _RUNTIME)):
            if (package / "LICENSE").is_file():
                shutil.copyfile(package / "LICENSE", place / f"LICENSE.{name}.txt")
        yield place


def _find(given: Path) -> tuple[Path, Path]:
    """The two packages, of the first's own folder or of one with node_modules."""
    library = given if (given / "dist" / _SCRIPT).is_file() else given / "node_modules" / _LIBRARY
    if not library.is_dir():
        raise InputError(
            f"--transformers-js {given} does not hold {_LIBRARY}; make such a folder with: npm install --prefix"
            f" {given} {_LIBRARY}@{_VERSION}"
        )
    places = (library / "node_modules" / _RUNTIME, library.parent.parent / _RUNTIME)
    return library, next((place for place in places if place.is_dir()), places[-1])


def _fetch(folder: Path) -> tuple[Path, Path]:
    """Both packages from npm's registry, without what they need elsewhere than in browsers."""
    library = _unpack(f"{_LIBRARY}@{_VERSION}", folder / "library")
    version = read_json(library / "package.json")["dependencies"][_RUNTIME]
    return library, _unpack(f"{_RUNTIME}@{version}", folder / "runtime")


def _unpack(package: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"--to web takes {package} from npm, which is not installed; install Node.js, or give a folder that holds"
            " it as --transformers-js"
        )
    folder.mkdir()
    words = [npm, "pack", package, "--silent", "--pack-destination", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)  # noqa: S603
    archive = next(folder.glob("*.tgz"), None)
    if done.returncode or archive is None:
        reason = (done.stderr.strip().splitlines() or ["it gave nothing"])[-1]
        raise InputError(
            f"npm cannot get {package} ({reason}); give a folder that holds it as --transformers-js, or mend npm's"
            " connection"
        )
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / "package"
