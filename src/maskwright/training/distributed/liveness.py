"""Detect a process that died or hangs, and end this one with an error that names it, instead of waiting for ever."""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from torch.distributed.distributed_c10d import PrefixStore

_EXIT_CODE = 1
_LOOK_S = 0.5
"""Interval between checks of the processes of this machine; launchers kill the others about 30 s after one died."""
_BROKEN_LIMIT_S = 15.0
"""After communication has failed, a process that is silent for this long counts as dead."""
_DEAD = "dead"
_OVER = ("Z", "X")
"""States of a process in Linux that has ended (a zombie)."""


class Liveness:
    """A thread that increments this process's counter in the shared store, and watches the counters of the others.

    Processes of the same machine are checked directly. Of the others only changes of their counters matter, timed by
    this machine's clock, so clocks need not agree. The process that finds a dead one tells all others.
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, silence_limit_s: float) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._silence_limit_s = silence_limit_s
        self._stopped = threading.Event()
        self._departed: str | None = None
        self._known = threading.Event()
        self._left: set[int] = set()
        self._counts = dict.fromkeys(self._others, 0)
        self._changed = dict.fromkeys(self._others, time.monotonic())
        self._names = {other: f"rank {other}" for other in self._others}
        self._neighbors: dict[int, tuple[int, str]] = {}
        """Process ids of the processes of this machine, with their start times."""
        self._unmet = set(self._others)
        name = f"rank {rank} ({socket.gethostname()}, process {os.getpid()})"
        place = [name, _find_machine(), os.getpid(), _read_state(os.getpid())[1]]
        store.set(f"place/{rank}", json.dumps(place))
        self._thread = threading.Thread(target=self._watch, daemon=True, name="liveness")
        self._thread.start()
        atexit.register(self.stop)  # a script that simply ends has not died

    def stop(self) -> None:
        """Leave in good order, so that the others do not take this process for dead."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()
        self._say_goodbye()

    def find_departed(self) -> tuple[str, bool]:
        """After communication failed: the process that is gone, and whether it died; waits until that is known."""
        deadline = time.monotonic() + min(self._silence_limit_s, _BROKEN_LIMIT_S) + 2 * self._interval_s
        self._silence_limit_s = min(self._silence_limit_s, _BROKEN_LIMIT_S)
        while time.monotonic() < deadline:
            if self._known.wait(_LOOK_S):
                return str(self._departed), True
            if self._left:
                return f"{self._names[min(self._left)]} ended before the others", False
        return "another process left", False

    def find_dead(self) -> str | None:
        """After a request to end: a process whose death may be the reason; None if there is none."""
        self._known.wait(4 * _LOOK_S)
        return self._departed

    def describe_missing(self) -> str | None:
        """The process that died or never joined, without waiting; for a process that hangs."""
        if self._departed is None and self._unmet:
            return f"{', '.join(self._names[other] for other in sorted(self._unmet))} ended before it met the others"
        return self._departed

    def find_gone(self) -> str | None:
        """A process that ended, in good order or not, without waiting."""
        if self._departed is None and self._left:
            return f"{self._names[min(self._left)]} ended before the others"
        return self._departed

    @property
    def _interval_s(self) -> float:
        return min(5.0, self._silence_limit_s / 6)

    def _watch(self) -> None:
        exchanged = -self._interval_s
        while not self._stopped.wait(min(_LOOK_S, self._interval_s)):
            try:
                self._meet()
                if time.monotonic() - exchanged >= self._interval_s:
                    exchanged = time.monotonic()
                    self._exchange()
                departed = self._look()
            except RuntimeError:  # the store lives in rank 0's process, or in the launcher's on its machine
                dead = [other for other in self._neighbors if self._is_gone(other)]
                place = self._names[dead[0]] if dead else self._names.get(0, "the launcher")
                departed = f"{place} {'died' if dead else 'can no longer be reached'}"
            if departed is not None:
                self._end(departed)
                return

    def _meet(self) -> None:
        """Read the names and places of processes that have joined since the last call."""
        for other in [other for other in self._unmet if self._store.check([f"place/{other}"])]:
            self._names[other], machine, pid, begun = json.loads(self._store.get(f"place/{other}"))
            if machine is not None and machine == _find_machine():
                self._neighbors[other] = (pid, begun)
            self._unmet.discard(other)

    def _exchange(self) -> None:
        self._store.add(f"count/{self._rank}", 1)
        for other in self._others:
            count = self._store.add(f"count/{other}", 0)
            if count != self._counts[other]:
                self._counts[other], self._changed[other] = count, time.monotonic()
        self._left = {other for other in self._others if self._store.add(f"left/{other}", 0)}

    def _look(self) -> str | None:
        """The process that is gone without having left in good order."""
        if self._store.check([_DEAD]):
            return self._store.get(_DEAD).decode()
        for other in sorted(self._neighbors.keys() - self._left):
            if self._is_gone(other):
                if self._store.add(f"left/{other}", 0):  # asked after it was gone: it has said all that it will say
                    self._left.add(other)
                    continue
                self._store.set(_DEAD, f"{self._names[other]} died")
                return f"{self._names[other]} died"
        for other in self._others:
            if time.monotonic() - self._changed[other] > self._silence_limit_s and other not in self._left:
                return f"{self._names[other]} has been silent for {self._silence_limit_s:.0f} s"
        return None

    def _is_gone(self, other: int) -> bool:
        pid, begun = self._neighbors[other]
        state, found = _read_state(pid)
        return state in _OVER or found != begun

    def _end(self, departed: str) -> None:
        """The main thread may be inside a collective that never returns; give it a moment to report, then leave."""
        self._departed = departed
        self._known.set()
        if self._stopped.wait(self._interval_s):
            return
        self._say_goodbye()  # whoever is named died before this one
        sys.stderr.write(f"error: {departed}, so this process ends too; the same command resumes the run\n")
        sys.stderr.flush()
        os._exit(_EXIT_CODE)

    def _say_goodbye(self) -> None:
        with suppress(RuntimeError):  # the store is gone when its own process left first
            self._store.add(f"left/{self._rank}", 1)


def _find_machine() -> str | None:
    """The same for processes that see each other's process ids; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _read_state(pid: int) -> tuple[str, str]:
    """The state and the start time of a process, from Linux; blank if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything
    return fields[0], fields[19]
