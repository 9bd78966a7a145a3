"""Worker processes that clean pages under a time limit, killed and replaced when a page is too much for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from threading import Lock, Timer

from maskwright.errors import RunError

_PROGRAM = ["-P", "-m", "maskwright.text.wiki.worker"]
_START_LIMIT_S = 120.0
_ORPHAN_GRACE_S = 10.0


class Failure(Enum):
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


@dataclass(frozen=True)
class CleanedPage:
    paragraphs: list[str] = field(default_factory=list)
    failure: Failure | None = None


class _WikiWorker:
    """One worker process, started at its first page and again after each one that it did not survive."""

    def __init__(self, hidden: Set[str], page_time_limit_s: float) -> None:
        self._time_limit_s = page_time_limit_s
        settings = {"hidden": sorted(hidden), "alarm_s": page_time_limit_s + _ORPHAN_GRACE_S}
        self._settings = json.dumps(settings)
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._expired = False
        self._lock = Lock()

    def clean(self, text: str) -> CleanedPage:
        if self._process is None:
            self._start()
        answer = self._ask(json.dumps(text), self._time_limit_s)
        if self._expired or not answer:
            self._stop()
        if answer:
            found = json.loads(answer)
            return CleanedPage(found["paragraphs"]) if "paragraphs" in found else CleanedPage(failure=Failure.CRASHED)
        return CleanedPage(failure=Failure.TIMED_OUT if self._expired else Failure.CRASHED)

    def close(self) -> None:
        """From any thread: the process ends now and none is started again."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.kill()

    def reap(self) -> None:
        if self._process is not None:
            self._stop()

    def _start(self) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with self._lock:
            if self._is_closed:
                raise RunError("the wiki workers were stopped")
            # A program rather than `multiprocessing`: scripts without a `__main__` guard work, and nothing is pickled.
            # Its own process group: Ctrl-C reaches the parent alone, which then ends the workers.
            self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, *_PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": path},
                process_group=0 if os.name == "posix" else None,
            )
        if not self._ask(self._settings, _START_LIMIT_S):
            assert self._process.stderr is not None
            self._process.kill()
            lines = self._process.stderr.read().strip().splitlines() or ["no reason given"]
            self._stop()
            raise RunError(f"a wiki worker could not be started: {lines[-1]}")

    def _ask(self, line: str, time_limit_s: float) -> str:
        """The answer; empty when the worker died or was killed."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._expired = False
        timer = Timer(time_limit_s, self._expire)
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            answer = ""
        finally:
            timer.cancel()
            timer.join()
        return answer if answer.endswith("\n") else ""

    def _expire(self) -> None:
        self._expired = True
        if self._process is not None:
            self._process.kill()

    def _stop(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue


class WikiPool:
    """`clean` may be called from as many threads as there are workers."""

    def __init__(self, num_workers: int, hidden: Set[str], page_time_limit_s: float) -> None:
        self.workers = [_WikiWorker(hidden, page_time_limit_s) for _ in range(num_workers)]
        self._idle: SimpleQueue[_WikiWorker] = SimpleQueue()
        for worker in self.workers:
            self._idle.put(worker)

    def clean(self, text: str) -> CleanedPage:
        worker = self._idle.get()
        try:
            return worker.clean(text)
        finally:
            self._idle.put(worker)


@contextmanager
def wiki_pool(
    num_workers: int, hidden: Set[str], page_time_limit_s: float
) -> Iterator[tuple[WikiPool, ThreadPoolExecutor]]:
    """The pool and the threads that drive it; no process outlives the block, however it ends."""
    pool = WikiPool(num_workers, hidden, page_time_limit_s)
    threads = ThreadPoolExecutor(num_workers, thread_name_prefix="wiki")
    try:
        yield pool, threads
    finally:
        for worker in pool.workers:
            worker.close()
        threads.shutdown(wait=True, cancel_futures=True)
        for worker in pool.workers:
            worker.reap()
