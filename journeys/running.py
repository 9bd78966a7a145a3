"""Running a journey in a folder of its own, and judging what came of it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journeys.files import REPOSITORY
from journeys.plan import SETTINGS_FILE, Journey

SHIMS = {
    "maskwright": '"{python}" -m maskwright "$@"',
    "torchrun": '"{python}" -m torch.distributed.run "$@"',
    "python": '"{python}" "$@"',
}
"""Programs as a user types them, under this interpreter."""
CHANCE_SLACK = 1.05
"""The loss of a model that knows nothing is ln(vocabulary); a random head adds a little."""
LAST_LINES = 15


@dataclass(frozen=True)
class Outcome:
    status: str
    """ok, FAILED or skipped"""
    seconds: float = 0.0
    figure: str = ""
    """The headline; of others than ok the reason."""
    tail: str = ""
    """The last lines that a failed one printed."""


class JourneyError(Exception):
    """What is wrong with a result."""


class Workshop:
    """Folders of journeys in `folder`, each with the documented files and what others made."""

    def __init__(self, folder: Path, files: Path, timeout_s: float, threads: int | None) -> None:
        self.folder = folder.resolve()
        self.files = files.resolve()
        self.timeout_s = timeout_s
        self.environment = self._build_environment(threads)

    def _build_environment(self, threads: int | None) -> dict[str, str]:
        programs = self.folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name, command in SHIMS.items():
            path = programs / name
            path.write_text(f"#!/bin/sh\nexec {command.format(python=sys.executable)}\n", encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        given = os.environ.get("PYTHONPATH")
        environment = os.environ | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), *([given] if given else [])]),
            "HF_HUB_OFFLINE": "1",  # what a name of the hub stands for is here, or the journey fails
            "COLUMNS": "160",
        }
        if threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(threads))
        return environment

    def find_folder(self, journey: Journey) -> Path:
        slug = re.sub(r"\W+", "-", journey.shown)[:50].strip("-")
        return self.folder / f"{slug}-{hashlib.sha256(journey.key.encode()).hexdigest()[:8]}"

    def prepare(self, folder: Path, links: dict[str, Path]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        for file in self.files.rglob("*"):
            if file.is_file():
                link(folder / file.relative_to(self.files), file)
        for name, target in links.items():
            # Not the folder itself: what commands write beside a run belongs into this journey's folder.
            if target.is_dir():
                shutil.copytree(target, folder / name, copy_function=os.link)
            else:
                shutil.copyfile(target, folder / name)
        for name in ("recipes", "benchmarks"):
            link(folder / name, REPOSITORY / name)

    def run(self, journey: Journey, folder: Path, links: dict[str, Path]) -> Outcome:
        self.prepare(folder, links)
        try:
            script = write_script(journey, folder)
        except JourneyError as error:
            return Outcome("FAILED", figure=str(error))
        out, err = folder / "stdout.log", folder / "stderr.log"
        start = time.monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                ["bash", "-o", "pipefail", "-c", script],
                cwd=folder,
                env=self.environment | {"PET_MASTER_PORT": str(find_free_port())},  # torchrun's, one to each
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            code = wait(process, self.timeout_s)
        seconds = time.monotonic() - start
        printed, said = (path.read_text(encoding="utf-8", errors="replace") for path in (out, err))
        try:
            return Outcome("ok", seconds, judge(journey, folder, code, printed, said))
        except (JourneyError, KeyError, OSError, ValueError) as error:  # also a result without its figures
            tail = "\n".join([*take_last_lines(printed), *take_last_lines(said)])
            return Outcome("FAILED", seconds, str(error) or repr(error), tail)


def take_last_lines(text: str) -> list[str]:
    """Without the frames of C++ libraries, which would push the error itself out."""
    return [line for line in text.splitlines() if not line.startswith("frame #")][-LAST_LINES:]


def find_free_port() -> int:
    with socket.socket() as server:
        server.bind(("localhost", 0))
        return int(server.getsockname()[1])


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.resolve())


def write_script(journey: Journey, folder: Path) -> str:
    command = journey.text
    if journey.kind == "python":
        (folder / "snippet.py").write_text(journey.text, encoding="utf-8")
        command = "python snippet.py"
    if journey.settings:
        (folder / SETTINGS_FILE).write_text(journey.settings, encoding="utf-8")
    if "step-LAST" in command:
        steps = [int(path.name.removeprefix("step-")) for path in (folder / "runs/mine/checkpoints").glob("step-*")]
        if not steps:
            raise JourneyError("runs/mine has no checkpoint")
        command = command.replace("step-LAST", f"step-{max(steps)}")
    return " && ".join([*journey.before, command])


def wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit code; None after a timeout, with the process and those it started ended."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def judge(journey: Journey, folder: Path, code: int | None, printed: str, said: str) -> str:
    """The headline figure, or a JourneyError that says what is wrong."""
    expected = 2 if journey.is_refused else 0
    if code is None:
        raise JourneyError("did not end in time")
    if code != expected:
        raise JourneyError(f"exit code {code}, expected {expected}")
    if "Traceback (most recent call last)" in said:
        raise JourneyError("a traceback")
    if match := re.search(r"(?<![\w.])(nan|inf)(?![\w.])|(?<=: )-?(NaN|Infinity)", printed):
        raise JourneyError(f"prints {match[0]}")
    for name, read in READERS.items():
        files = [path for path in sorted(folder.glob(name)) if not is_given(path.relative_to(folder), journey)]
        if files:
            return read(files[-1], journey.learns)
    lines = [line.strip() for line in (printed or said).splitlines() if line.strip(" ╭╮╰╯─│━{}[]")]
    return re.sub(r"\s+", " ", lines[-1]) if lines else "done"


def is_given(path: Path, journey: Journey) -> bool:
    return any(path.is_relative_to(name) for name in journey.needs)


def read_seeds(path: Path, learns: bool) -> str:
    """The mean of the first seed's metric."""
    final = json.loads((path.parent / "seed-0/final.json").read_text(encoding="utf-8"))
    scores = json.loads(path.read_text(encoding="utf-8"))["scores"]
    return describe_task({**final, final["metric"]: scores[final["metric"]]["mean"]}, learns)


def read_final(path: Path, learns: bool) -> str:
    final = json.loads(path.read_text(encoding="utf-8"))
    if "task" in final:
        return describe_task(final, learns)
    chance = math.log(json.loads((path.parent / "model/config.json").read_text(encoding="utf-8"))["vocab_size"])
    return describe_training(final, chance, learns)


def describe_task(final: dict[str, Any], learns: bool) -> str:
    metric = final["metric"]
    value = final[metric]
    if value is None or not math.isfinite(value):
        raise JourneyError(f"{metric} is {value}")
    baseline = 0.0
    if metric == "accuracy" and final["classes"]:
        sizes = [one["examples"] for one in final["classes"].values()]
        baseline = max(sizes) / sum(sizes)
    if learns and value <= baseline:
        raise JourneyError(f"{metric} {value:.3f} is no better than the baseline's {baseline:.3f}")
    return f"{metric} {value:.3f} (baseline {baseline:.3f})"


def describe_training(final: dict[str, Any], chance: float, learns: bool) -> str:
    # Of several losses that of the tokens, with which the baselines compare.
    loss = next(final[name] for name in ("generator_loss", "mlm_loss", "loss") if name in final)
    trained = final["train_loss"]
    for name, value in (("loss", loss), ("train_loss", trained)):
        if not math.isfinite(value):
            raise JourneyError(f"{name} is {value}")
    if loss > CHANCE_SLACK * chance:
        raise JourneyError(f"loss {loss:.3f} is above ln(vocabulary), {chance:.3f}")
    name, baseline = ("before", final["loss_before"]) if "loss_before" in final else ("unigram", final["unigram_loss"])
    if learns and loss > baseline:
        raise JourneyError(f"loss {loss:.3f} is no better than {name} {baseline:.3f}")
    return f"loss {loss:.3f} ({name} {baseline:.3f}), {final['steps']} steps"


READERS: dict[str, Callable[[Path, bool], str]] = {
    "runs/*/seeds.json": read_seeds,
    "runs/*/final.json": read_final,
}
"""By the files that commands leave."""
