"""Processes that start in milliseconds: forked from one that has imported torch, so that many faults can be tried.

A child is a process of its own, with its own environment, output files, signals and exit code; it calls
`module:function` with JSON arguments.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

_PRELOADED = (
    "torch",
    "torch._dynamo",  # which the first optimizer imports
    "torch.distributed.fsdp",
    "maskwright.cli.app",
    "maskwright.runs.commands",
    "maskwright.runs.pretrain",
    "maskwright.runs.report",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
)
_POLL_S = 0.02


@dataclass
class Child:
    """A started process; its output is in files."""

    parent: Prestarted
    pid: int
    out: Path
    err: Path
    code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal, as `subprocess` has it; None while it runs."""
        if self.code is None:
            self.code = self.parent.ask({"poll": self.pid})
        return self.code

    def wait(self, timeout_s: float = 200.0) -> int:
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise TimeoutError(f"still running after {timeout_s} s; it said {self.text()}")
            time.sleep(_POLL_S)
        assert self.code is not None
        return self.code

    def send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def text(self) -> str:
        """What it has said so far; the files are made when it begins."""
        return "".join(file.read_text(errors="replace") for file in (self.out, self.err) if file.exists())


class Prestarted:
    """The process that is forked from."""

    def __init__(self, search_path: tuple[Path, ...] = (), modules: tuple[str, ...] = ()) -> None:
        """Children find modules in `search_path` too; `modules` are imported beside those of training."""
        paths = [str(path) for path in (Path(__file__).parent, *search_path)]
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
        )

    def start(
        self, target: str, arguments: Mapping[str, Any], output: Path, environment: Mapping[str, str] | None = None
    ) -> Child:
        """Call `module:function` in a new process; what it says goes to `output`.out and `output`.err."""
        out, err = output.with_suffix(".out"), output.with_suffix(".err")
        order = {"target": target, "arguments": dict(arguments), "environment": dict(environment or {})}
        pid = self.ask(order | {"out": str(out), "err": str(err)})
        return Child(self, pid, out, err)

    def start_ranks(self, target: str, arguments: Mapping[str, Any], output: Path, size: int) -> list[Child]:
        """The same call in `size` processes that find each other as under torchrun."""
        shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        return [
            self.start(
                target,
                arguments,
                output.with_name(f"{output.name}-rank{rank}"),
                shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(size)
        ]

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_command(words: list[str]) -> None:
    """`maskwright` with these words."""
    from maskwright.cli.app import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
    sys.argv = ["maskwright", *words]
    main()


def _serve() -> None:
    """Fork and poll as the lines of standard input ask; a child leaves this loop and does what it was asked to."""
    for name in (*_PRELOADED, *sys.argv[1:]):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork that looks for garbage in what it shares copies it
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    _end(0)


def _become(order: dict[str, Any]) -> NoReturn:
    os.environ.update(order["environment"])
    for descriptor, name in ((1, order["out"]), (2, order["err"])):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module, function = order["target"].split(":")
    code: object = 0
    try:
        getattr(importlib.import_module(module), function)(**order["arguments"])
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    _end(code)


def _end(code: object) -> NoReturn:
    """As the interpreter ends, but the system takes the memory: to take all modules apart, a fork copies it first.

    That takes two seconds of a core.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
