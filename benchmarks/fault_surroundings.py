"""Trouble around a run: a second command, full disks, hostile files, ranks that die under torchrun, other verbs."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fault_kinds import interrupt
from fault_lab import MAX_STEPS, Lab, Trial, describe_difference, last_step, name_run, read_result, wait_for_step
from prestarted import find_free_port, run_command

_MEMORY_BYTES = 1 << 30
"""What reading may add to a process, whatever it is given."""
_TORCHRUN_S = 30.0
"""torchrun kills the others so long after one died."""
_LAUNCHED_S = 300.0
"""The most that two processes of torchrun may take from beginning to end."""


class NotPossibleError(Exception):
    """A trial needs rights that this user does not have."""


def judge(fault: str, seed: int, problem: str, exit_s: float = 0.0) -> Trial:
    return Trial(fault, seed, None, 0, exit_s, problem)


def begin_twice(lab: Lab, fault: str, seed: int) -> Trial:
    """The same command a second time, at once, later or with --overwrite: one of them is refused, the other whole."""
    name, generator = name_run(fault, seed), random.Random(seed)
    first = lab.start(name)
    time.sleep(generator.uniform(0, lab.training_s) if seed % 3 else 0)
    more = ["--overwrite"] if seed % 2 else []
    second = lab.prestarted.start(
        "prestarted:run_command", {"words": [*lab.words(name), *more]}, lab.folder / f"{name}-second"
    )
    codes = sorted([first.wait(), second.wait()])
    said = first.text() + second.text()
    is_refused = codes == [0, 2] and re.search("is being written by process|holds a finished run", said)
    problem = "" if is_refused or (codes == [0, 0] and more) else f"exit codes {codes}: {said[-300:]}"
    problem = problem or describe_difference(read_result(lab.folder / name), lab.expected, 0.0)
    return judge(fault, seed, problem)


def prepare_twice(lab: Lab, fault: str, seed: int) -> Trial:
    """Two preparations of one folder: as if there had been one."""
    text, alone = lab.folder / "text.txt", lab.folder / "prepared-alone"
    tokenizer = lab.folder / "unbroken"

    def start(name: str, out: Path) -> Any:
        words = ["prepare", str(text), "--tokenizer", str(tokenizer), "--out", str(out)]
        return lab.prestarted.start("prestarted:run_command", {"words": words}, lab.folder / name)

    if not alone.is_dir() and (code := start("alone", alone).wait()):
        raise RuntimeError(f"preparing failed with {code}")
    out = lab.folder / name_run(fault, seed)
    first = start(f"{out.name}-first", out)
    time.sleep(random.Random(seed).uniform(0, 0.3))
    second = start(f"{out.name}-second", out)
    codes, said = sorted([first.wait(), second.wait()]), first.text() + second.text()
    refusals = {(0, 2): "is being written by", (0, 0): "already prepared"}
    is_told = tuple(codes) in refusals and refusals[tuple(codes)] in said
    problem = "" if is_told else f"exit codes {codes}: {said[-300:]}"
    if not problem and _read_folder(out) != _read_folder(alone):
        problem = "another result than one preparation's"
    return judge(fault, seed, problem)


def _read_folder(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[Path]:
    """A file system of that size."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        raise NotPossibleError("as this user may not mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill_whole_disk(lab: Lab, fault: str, seed: int) -> Trial:
    """Not a byte is left from some step on; every other time there is room again. With room nothing is lost."""
    with small_disk(lab.folder / name_run(fault, seed), 8 << 20) as disk:
        inner, run = Lab(disk, lab.prestarted), disk / "run"
        child = inner.start("run")
        wait_for_step(child, run, random.Random(seed).randint(2, MAX_STEPS - 20))
        _fill(disk / "rest")
        time.sleep(lab.training_s / 4)
        begun = time.monotonic()
        if seed % 2:
            (disk / "rest").unlink()
        else:
            time.sleep(lab.training_s)
            begun = time.monotonic()
            child.send(signal.SIGTERM)
        code, exit_s = child.wait(), time.monotonic() - begun
        (disk / "rest").unlink(missing_ok=True)
        problem = "" if "Traceback" not in child.text() else f"exit code {code}: {child.text()[-400:]}"
        if not (run / "final.json").is_file() and (again := inner.start("run")).wait():
            problem = problem or f"resuming failed: {again.text()[-400:]}"
        problem = problem or describe_difference(read_result(run), lab.expected, 0.0)
    return judge(fault, seed, problem, exit_s)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def run_out_of_memory_evaluating(lab: Lab, fault: str, seed: int) -> Trial:
    """Evaluations of more than two rows at a time do not fit."""
    name, begun = name_run(fault, seed), time.monotonic()
    child = lab.start(name, "fault_surroundings:run_in_little_evaluation_memory", max_rows=2)
    code, said = child.wait(), child.text()
    problem = "" if code == 0 and "out of memory" in said else f"exit code {code}: {said[-400:]}"
    return lab.finish(fault, name, seed, broke_at=0, exit_s=time.monotonic() - begun, problem=problem)


def run_in_little_evaluation_memory(words: list[str], max_rows: int) -> None:
    import torch

    from maskwright.objectives.masked_lm import MaskedLanguageModel

    loss_sums = MaskedLanguageModel.loss_sums

    def limited(self: MaskedLanguageModel, corrupted: Any) -> Any:
        if not self.training and len(corrupted.labels) > max_rows:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return loss_sums(self, corrupted)

    MaskedLanguageModel.loss_sums = limited  # type: ignore[method-assign]
    run_command(words)


def lose_a_rank_of_torchrun(lab: Lab, fault: str, seed: int) -> Trial:
    """At default settings: torchrun sees the death first and asks the other to end, which names the dead one."""
    name = name_run(fault, seed)
    port = find_free_port()
    words = [*lab.words(name), "training.dead_process_seconds=60"]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", "-m", "maskwright"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (lab.folder / f"{name}.out").open("w") as out:
        launched = subprocess.Popen(
            [sys.executable, *launcher, *words], stdout=out, stderr=out, env=environment, start_new_session=True
        )
        run = lab.folder / name
        step = random.Random(seed).randint(0, MAX_STEPS - 12)
        with _ending(launched):
            while launched.poll() is None and last_step(run) < step:
                time.sleep(0.01)
            victim = _find_rank(launched, rank=seed % 2)
            sent = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            code = launched.wait()
    exit_s = time.monotonic() - sent
    said = (lab.folder / f"{name}.out").read_text()
    named = f"rank {seed % 2} (" in said
    problem = "" if code and named and exit_s < _TORCHRUN_S else f"exit code {code} after {exit_s:.0f} s: {said[-600:]}"
    return lab.finish(fault, name, seed, broke_at=last_step(run), exit_s=exit_s, problem=problem)


@contextmanager
def _ending(launched: subprocess.Popen[bytes]) -> Iterator[None]:
    """A launcher that takes longer is killed with all that it started, and the trial with it."""
    killer = threading.Timer(_LAUNCHED_S, os.killpg, (launched.pid, signal.SIGKILL))
    killer.start()
    try:
        yield
    finally:
        killer.cancel()
    if launched.returncode == -signal.SIGKILL:
        raise TimeoutError(f"torchrun was still running after {_LAUNCHED_S} s")


def _find_rank(launcher: subprocess.Popen[bytes], rank: int) -> int:
    """The process that the launcher started for it."""
    while launcher.poll() is None:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (place / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            if parent == launcher.pid and b"RANK=%d" % rank in variables:
                return int(place.name)
        time.sleep(0.05)
    raise TimeoutError("torchrun ended before a rank could be killed")


def diverge(lab: Lab, fault: str, seed: int) -> Trial:
    """A learning rate of 100: the run says that it diverged, and its exit code too."""
    name = name_run(fault, seed)
    words = [*lab.words(name), "optimizer.learning_rate=100", f"run.seed={seed}", "optimizer.epsilon=1e-8"]
    child = lab.prestarted.start("prestarted:run_command", {"words": words}, lab.folder / name)
    code, said = child.wait(), child.text()
    is_told = code == 1 and re.search(r"diverged to|steps in a row", said) and "Traceback" not in said
    return judge(fault, seed, "" if is_told else f"exit code {code}: {said[-400:]}")


_DEEP = "[" * 100_000
_SMALL_FILES = {
    "metrics.jsonl": ["123\n", "null\n", "{}\n", f"{_DEEP}\n", "9" * 5000 + "\n", '{"step": "\\ud800"}\n'],
    "data.json": ["{}", _DEEP, "null", "", '{"fingerprint": 3}'],
    "config.yaml": [_DEEP, "", "a: &a [*a]", "run: {name: x}\nrun: {name: y}"],
    "checkpoints/best.json": ["{}", _DEEP, '{"step": "x"}'],
    "checkpoints/step-NEWEST/state.json": ["{}", _DEEP, '{"state": {"step": 1}, "history": []}'],
    "checkpoints/step-NEWEST/checksums.json": ["{}", _DEEP, "[]", '{"state.json": 3}'],
}


def damage_small_files(lab: Lab, fault: str) -> Iterator[Trial]:
    """A file of a run that says something else: refused or told, and with the file as it was nothing is lost."""
    name = name_run(fault, 0)
    newest = interrupt(lab, name, 20)
    run, kept = lab.folder / name, lab.folder / f"{name}-kept"
    shutil.copytree(run, kept)
    cases = [(file.replace("NEWEST", str(newest)), text) for file, texts in _SMALL_FILES.items() for text in texts]
    cases += [(f"checkpoints/step-{odd}", "") for odd in ("\N{SUPERSCRIPT TWO}", "", "-1", "007")]
    for seed, (file, text) in enumerate(cases):
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(kept, run)
        whole = (run / file).read_bytes() if (run / file).is_file() else None
        (run / file).write_text(text)
        child = lab.start(name)
        code, said = child.wait(), child.text()
        problem = "" if code in (0, 2) and "Traceback" not in said else f"{file}: exit code {code}: {said[-300:]}"
        is_derived = file == "checkpoints/best.json"  # every checkpoint says it again
        if code == 0 and "warning" not in said and whole is not None and not is_derived:
            problem = problem or f"{file}: went on without a word"
        if code == 2:
            (run / file).unlink()
            if whole is not None:
                (run / file).write_bytes(whole)
            problem = problem or lab.finish(fault, name, seed, broke_at=newest, exit_s=0.0).problem
        elif not problem:
            found, expected = read_result(run), dict(lab.expected)
            for key in ("metrics",):  # lines that were lost before the run went on
                found.pop(key), expected.pop(key)
            problem = describe_difference(found, expected, 0.0)
        yield judge(fault, seed, problem)


@dataclass(frozen=True)
class Hostile:
    """Files that a command is given, and the end it must come to."""

    build: Callable[[Path], list[str]]
    code: int
    says: str = ""


def _prepare(make: Callable[[Path], Path]) -> Callable[[Path], list[str]]:
    return lambda folder: [
        "prepare",
        str(make(folder)),
        "--tokenizer",
        str(folder.parent / "unbroken"),
        "--out",
        str(folder / "out"),
    ]


def _write(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


def _make_loop(folder: Path) -> Path:
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("one text here.\n" * 50)
    for name in ("one", "two"):
        (folder / "texts" / name).symlink_to(folder / "texts")
    return folder / "texts"


def _make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.txt")
    return folder / "pipe.txt"


def _make_bomb(suffix: str) -> Callable[[Path], Path]:
    """Two hundred megabytes of one letter."""

    def make(folder: Path) -> Path:
        import pyarrow

        path = folder / f"bomb.txt.{suffix}"
        compress = {
            "gz": gzip.compress,
            "xz": lzma.compress,
            "zst": partial(pyarrow.compress, codec="zstd", asbytes=True),
        }
        path.write_bytes(compress[suffix](b"a" * (200 << 20)))
        return path

    return make


def _configure(text: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["train", str(_write("c.yaml", text.encode())(folder))]


_ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{'abcdefghijk'[n]}: &{'abcdefghijk'[n]} [{', '.join(['*' + 'abcdefghijk'[n - 1]] * 9)}]\n" for n in range(1, 11)
)
HOSTILE = {
    "one long line": Hostile(_prepare(_write("a.txt", b"some words here " * (30 << 16))), 0, "were cut"),
    "bomb, gzip": Hostile(_prepare(_make_bomb("gz")), 2, "grows"),
    "bomb, xz": Hostile(_prepare(_make_bomb("xz")), 2, "grows"),
    "bomb, zstd": Hostile(_prepare(_make_bomb("zst")), 2, "grows"),
    "loop of links": Hostile(_prepare(_make_loop), 0, "50 documents"),
    "named pipe": Hostile(_prepare(_make_pipe), 2, "named pipe"),
    "YAML aliases": Hostile(_configure(_ALIASES), 2, "c.yaml"),
    "YAML twice": Hostile(_configure("run:\n  seed: 1\n  seed: 2\n"), 2, "'seed' a second time"),
    "UTF-16": Hostile(_prepare(_write("a.txt", ("words in wide letters. " * 40).encode("utf-16"))), 0),
    "UTF-16 unmarked": Hostile(_prepare(_write("a.txt", ("words here. " * 40).encode("utf-16-le"))), 2, "UTF-16"),
}


def give_hostile_files(lab: Lab, fault: str) -> Iterator[Trial]:
    """Each is read within the memory that it may take, or refused in one sentence."""
    for seed, (name, hostile) in enumerate(HOSTILE.items()):
        folder = lab.folder / name_run(fault, seed)
        folder.mkdir()
        words, begun = hostile.build(folder), time.monotonic()
        child = lab.prestarted.start("fault_surroundings:run_measured", {"words": words}, folder / "said")
        code = child.wait(1200.0)  # 30 MB of text, also on a machine that is busy
        said, grown = child.text(), re.search(r"grew by (\d+) bytes", child.text())
        problem = "" if code == hostile.code and hostile.says in said else f"{name}: exit code {code}: {said[-300:]}"
        if grown is None or int(grown.group(1)) > _MEMORY_BYTES:
            problem = problem or f"{name}: memory {grown and grown.group(0)}"
        yield judge(fault, seed, problem, time.monotonic() - begun)


def run_measured(words: list[str]) -> None:
    """Says at its end how much memory it took at most, beyond what the process had."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _read_peak()
    try:
        run_command(words)
    finally:
        sys.stdout.write(f"grew by {_read_peak() - before} bytes\n")


def _read_peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


def interrupt_other_verbs(lab: Lab, fault: str) -> Iterator[Trial]:
    """Ctrl-C in a verb that keeps nothing: 130, no traceback, no claim that something was saved, nothing left."""
    text = lab.folder / "long.txt"
    text.write_text("the cat sees the old house in the rain. the dog follows.\n" * 200_000)
    run = str(lab.folder / "unbroken")
    verbs = {
        "predict": ["predict", "embed", run, str(text), "--out", "{out}.npz"],
        "tokenizer": ["tokenizer", "train", str(text), "--out", "{out}"],
        "export": ["export", run, "--to", "hf", "--text", str(text), "--out", "{out}"],
    }
    for seed, (verb, words) in enumerate(verbs.items()):
        out = lab.folder / f"{name_run(fault, seed)}-out"
        filled = [word.format(out=out) for word in words]
        child = lab.prestarted.start("prestarted:run_command", {"words": filled}, lab.folder / name_run(fault, seed))
        time.sleep(1.5)
        sent = time.monotonic()
        child.send(signal.SIGINT)
        code, said = child.wait(), child.text()
        is_told = code == 130 and "Traceback" not in said and "saved" not in said
        problem = "" if is_told else f"{verb}: exit code {code}: {said[-300:]}"
        left = [path.name for path in lab.folder.glob(f"*{out.name}*")]
        problem = problem or (f"{verb} left {left}" if left else "")
        yield judge(fault, seed, problem, time.monotonic() - sent)


def use_narrow_terminals(lab: Lab, fault: str) -> Iterator[Trial]:
    """Terminals of ASCII or Latin-1 letters, and control characters in the text."""
    run, words = str(lab.folder / "unbroken"), "the c\u00e9\u4e2d\x1b[31m\x9b31m\u202e [MASK] sees."
    for seed, encoding in enumerate(("ascii", "latin-1", "utf-8")):
        environment = os.environ | {"PYTHONIOENCODING": encoding, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [sys.executable, "-m", "maskwright", "fill", run, words], capture_output=True, env=environment, check=False
        )
        said = (done.stdout + done.stderr).decode(encoding, errors="replace")
        problem = "" if done.returncode == 0 else f"{encoding}: exit code {done.returncode}: {said[-300:]}"
        controls = [character for character in said if character in "\x1b\x9b\u202e"]
        yield judge(fault, seed, problem or (f"{encoding}: {controls!r} reached the terminal" if controls else ""))
