"""Small inputs that many tests share: sentences, a text file of them, a tokenizer and the settings of a short run.

Large libraries are imported where they are used, as the process that only hands tests out reads this file too.
"""

from __future__ import annotations

import base64
import copy
import functools
import gc
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from hypothesis import settings

if TYPE_CHECKING:
    from tests.object_store import ObjectStore

    from maskwright.stores.addresses import StoreUrl
    from maskwright.text.tokenizer.tokenizer import Tokenizer

_SUBJECTS = ["the cat", "a small dog", "my old teacher", "every student", "the quiet river", "one red bird"]
_VERBS = ["sees", "follows", "remembers", "likes", "carries"]
_OBJECTS = ["the green house", "a long road"]
_ENDINGS = ["", " in the morning", " before it rains", " with great care"]
_BLANK_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


_NUM_MODULES_READ = 40

_STARTING_PROCESSES = (
    "tests/faults/",
    "tests/cli/test_predict_resume.py",
    "tests/serving/test_serve_command.py",
    "tests/tasks/test_retrieval_processes.py",
    "tests/tasks/test_similarity_loss.py",
)


_EXPORTING_GRAPHS = (
    "tests/export/test_export_foreign_onnx.py",
    "tests/export/test_export_onnx.py",
    "tests/export/test_sentence_onnx.py",
    "tests/export/test_task_export.py",
)
"""Files that one process takes: libraries that write ONNX graphs take seconds to import, and again to begin."""
_GROUPS = {"processes": _STARTING_PROCESSES, "graphs": _EXPORTING_GRAPHS}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests wait for other processes come first, so that nobody waits for one of them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_STARTING_PROCESSES))


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis waits for examples on a busy machine too.

    Where slow tests are left out, it tries fewer, unless a test has a number of its own. Tests take their settings when
    they are imported, so these come first.
    """
    settings.register_profile("patient", deadline=None, max_examples=30 if _is_quick(config) else 100)
    settings.load_profile("patient")
    os.fsync = _leave_to_the_system


def _is_quick(config: pytest.Config) -> bool:
    return "not slow" in config.getoption("markexpr")


def _leave_to_the_system(descriptor: int) -> None:
    """No test cuts the power, and waiting for disks takes longer than a tiny run; other processes do wait."""


def pytest_collection_finish() -> None:
    """Modules stay to the end: garbage is looked for elsewhere, and less often than in a small program."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """By file, as `--dist loadfile`, but one process takes all files of a group, which share what starts slowly."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            groups = (name for name, files in _GROUPS.items() if nodeid.startswith(files))
            return next(groups, None) or super()._split_scope(nodeid)

    return ByFile(config, log)


@pytest.fixture(scope="session")
def prestarted() -> Iterator[Any]:
    """Starts processes in milliseconds, which find the helpers of tests."""
    from prestarted import Prestarted

    tests = Path(__file__).parent
    served = ("maskwright.serving.server", "maskwright.serving.app") if importlib.util.find_spec("fastapi") else ()
    modules = ("maskwright.runs.predict", "maskwright.inference.embed", *served)
    parent = Prestarted((tests, *(tests / name for name in ("faults", "cli", "tasks"))), modules)
    yield parent
    parent.close()


@pytest.fixture(scope="session", autouse=True)
def _auto_precision_is_fp32(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """On CPUs, here and in processes that tests start: by a measurement it would depend on the machine and its load."""
    import torch

    from maskwright.training.compute import precision

    with pytest.MonkeyPatch.context() as session:
        session.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        cpu = torch.device("cpu")
        for work, width in itertools.product(("training", "inference"), precision.WIDTHS):
            precision.find_speeds(work, cpu, width, lambda *_: {"fp32": 1.0, "bf16": 0.5, "fp16": 0.5})
        yield


@pytest.fixture(scope="session", autouse=True)
def _documentation_is_short(pytestconfig: pytest.Config) -> Iterator[None]:
    """The built-in corpus has all topics and the docstrings of a few modules: parsing the library takes seconds.

    Slow tests have all of it.
    """
    from maskwright.text import sources

    list_all = sources._list_modules
    with pytest.MonkeyPatch.context() as session:
        if _is_quick(pytestconfig):
            session.setattr(sources, "_list_modules", lambda stdlib: sorted(list_all(stdlib))[:_NUM_MODULES_READ])
        yield


@pytest.fixture(autouse=True)
def _products_of_fp32_stay_exact() -> Iterator[None]:
    """A run in fewer bits allows the whole process shorter products, which some CPUs have too."""
    import torch

    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


class _Blank:
    """Takes any call, and has any attribute."""

    def __init__(self, *given: Any, **named: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols of Python and numpy
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self

    def __getitem__(self, place: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


class _BlankFigure(_Blank):
    """Takes all that is drawn on a matplotlib figure, and saves a picture of one dot."""

    def subplots(self, num_rows: int = 1, num_columns: int = 1, **options: Any) -> Any:
        axes = np.empty((num_rows, num_columns), dtype=object)
        for place in np.ndindex(axes.shape):
            axes[place] = self
        return axes.squeeze() if axes.size > 1 else axes.item()

    def savefig(self, target: Any, **options: Any) -> None:
        if hasattr(target, "write"):
            target.write(_BLANK_PNG)
        else:
            Path(target).write_bytes(_BLANK_PNG)


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_blank() -> Iterator[Callable[[], Any]]:
    """Drawing curves takes longer than a tiny run; what draws all the same."""
    if not importlib.util.find_spec("matplotlib"):
        yield nullcontext
        return
    import matplotlib.figure

    drawn = matplotlib.figure.Figure

    @contextmanager
    def drawing() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("matplotlib.figure.Figure", drawn)
            yield

    with pytest.MonkeyPatch.context() as session:
        session.setattr("matplotlib.figure.Figure", _BlankFigure)
        yield drawing


@pytest.fixture(autouse=True)
def _marked_tests_draw(request: pytest.FixtureRequest, _pictures_are_blank: Callable[[], Any]) -> Iterator[None]:
    """Those marked `draws`, and what they set up; a fixture of a module or a session draws if it asks for it."""
    with nullcontext() if request.node.get_closest_marker("draws") is None else _pictures_are_blank():
        yield


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """Sixty different sentences of various lengths."""
    return [
        f"{subject} {verb} {thing}{_ENDINGS[(number + len(verb)) % len(_ENDINGS)]}."
        for number, subject in enumerate(_SUBJECTS)
        for verb in _VERBS
        for thing in _OBJECTS
    ]


@pytest.fixture(scope="session")
def corpus_file(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "sentences.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(sentences: list[str]) -> Tokenizer:
    from maskwright.text.tokenizer.train import train_tokenizer

    return train_tokenizer(sentences, vocab_size=160)


_TINY_RUN = {
    "run": {"name": "tiny"},
    "model": {"variant": "tiny", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "tokenizer": {"vocab_size": 160},
    "data": {"max_length": 32, "validation_share": 0.2},
    "optimizer": {"learning_rate": 3e-3},
    "training": {
        "epochs": 10,
        "max_steps": 12,
        "batch_tokens": 256,
        "log_every_steps": 4,
        "checkpoint_every_steps": 5,
        "device": "cpu",
    },
}


@pytest.fixture(scope="session")
def build_tiny_values(corpus_file: Path) -> Callable[[Path], dict[str, Any]]:
    """Settings of a run that takes a second or two, for a folder of runs."""

    def build(out: Path) -> dict[str, Any]:
        values: dict[str, Any] = copy.deepcopy(_TINY_RUN)
        values["run"]["out"] = str(out)
        values["data"]["train"] = str(corpus_file)
        return values

    return build


@pytest.fixture
def tiny_values(build_tiny_values: Callable[[Path], dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    """Settings of a run that takes a second or two; the run's folder is `tmp_path / "runs" / "tiny"`."""
    return build_tiny_values(tmp_path / "runs")


@pytest.fixture(scope="session")
def trained_run(
    build_tiny_values: Callable[[Path], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
    _pictures_are_blank: Callable[[], Any],
) -> Path:
    """The folder of a finished run of the tiny settings, with real pictures; copy what you want to change."""
    from rich.console import Console

    from maskwright.config import build_config
    from maskwright.runs.pretrain import pretrain

    values = build_tiny_values(tmp_path_factory.mktemp("trained"))
    with _pictures_are_blank():
        return pretrain(build_config(values), console=Console(quiet=True)).folder.path


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    def assert_refused(self, *words: str) -> None:
        """Exit code 2 and one line on stderr that holds the words."""
        assert self.code == 2, self
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.err + self.out
        for word in words:
            assert word in self.err


@pytest.fixture(scope="session")
def _get_command() -> Callable[..., Any]:
    """Typer reads the signatures of all commands again for each call."""
    import typer.main

    return functools.cache(typer.main.get_command)


@pytest.fixture
def command(
    _get_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., CommandResult]:
    """Run `maskwright` with these words, in this process."""
    from maskwright.cli.app import main

    monkeypatch.setattr("typer.main.get_command", _get_command)

    def run(*words: object) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["maskwright", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return CommandResult(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def tiny_command(tiny_values: dict[str, Any], tmp_path: Path) -> list[str]:
    """The words of a command that trains the tiny settings."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_values), encoding="utf-8")
    return ["train", str(path)]


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """A server of objects, which the environment points to."""
    from tests.object_store import serving_objects

    with pytest.MonkeyPatch.context() as patch, serving_objects(patch) as store:
        yield store


@pytest.fixture
def url(object_store: ObjectStore, request: pytest.FixtureRequest) -> StoreUrl:
    """An address in it that no other test uses."""
    from tests.object_store import BUCKET

    from maskwright.stores.addresses import StoreUrl

    return StoreUrl(f"s3://{BUCKET}/{request.node.originalname}-{abs(hash(request.node.nodeid))}")
