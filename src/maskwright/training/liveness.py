"""Notice a process that died or hangs, and end this one with its name instead of waiting for it for ever."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from contextlib import suppress

from torch.distributed.distributed_c10d import PrefixStore

_EXIT_CODE = 1


class Liveness:
    """A thread that counts up for this process in the shared store, and watches the counts of the others.

    Only changes of a count matter, seen by this machine's clock, so clocks need not agree.
    """

    def __init__(self, store: PrefixStore, rank: int, size: int, silence_limit_s: float) -> None:
        self._store = store
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._silence_limit_s = silence_limit_s
        self._stopped = threading.Event()
        self._departed: str | None = None
        self._known = threading.Event()
        store.set(f"name/{rank}", f"rank {rank} ({socket.gethostname()}, process {os.getpid()})")
        self._thread = threading.Thread(target=self._watch, daemon=True, name="liveness")
        self._thread.start()
        atexit.register(self.stop)  # a script that simply ends has not died

    def stop(self) -> None:
        """Leave in good order: the others no longer wait for a sign of life."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._thread.join()
        with suppress(RuntimeError):  # the store is gone when its own process left first
            self._store.add(f"left/{self._rank}", 1)

    def find_departed(self) -> str | None:
        """After communication failed: wait until it is known who is silent; None if everybody answers."""
        self._known.wait(self._silence_limit_s + 2 * self._interval_s)
        return self._departed

    @property
    def _interval_s(self) -> float:
        return min(5.0, self._silence_limit_s / 6)

    def _watch(self) -> None:
        counts, changed = dict.fromkeys(self._others, 0), dict.fromkeys(self._others, time.monotonic())
        names = {other: f"rank {other}" for other in self._others}
        while not self._stopped.wait(self._interval_s):
            try:
                self._store.add(f"count/{self._rank}", 1)
                for other in self._others:
                    count = self._store.add(f"count/{other}", 0)
                    if count != counts[other]:
                        counts[other], changed[other] = count, time.monotonic()
                        names[other] = self._store.get(f"name/{other}").decode()
                left = {other for other in self._others if self._store.add(f"left/{other}", 0)}
            except RuntimeError:  # the store lives in rank 0's process, or in the launcher's on its machine
                self._end(f"{names.get(0, 'the launcher')} can no longer be reached")
                return
            for other in self._others:
                if time.monotonic() - changed[other] > self._silence_limit_s and other not in left:
                    self._end(f"{names[other]} has been silent for {self._silence_limit_s:.0f} s")
                    return

    def _end(self, departed: str) -> None:
        """The main thread may be inside a collective that never returns; give it a moment to report, then leave."""
        self._departed = departed
        self._known.set()
        if self._stopped.wait(self._interval_s):
            return
        sys.stderr.write(f"error: {departed}, so this process ends too; the same command resumes the run\n")
        sys.stderr.flush()
        os._exit(_EXIT_CODE)
