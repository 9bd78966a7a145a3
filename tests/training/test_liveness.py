"""Who is said to be gone: the dead of this machine, the silent of others, and nobody who left in good order."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore

from maskwright.errors import LostProcessError, RunInterruptedError
from maskwright.runs import interruption
from maskwright.training.distributed import liveness as module
from maskwright.training.distributed import world as world_module
from maskwright.training.distributed.liveness import Liveness

_LIMIT_S = 60.0
"""As by default: no test here waits for it."""


@pytest.fixture(autouse=True)
def _the_others_are_looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.05)


@pytest.fixture
def store() -> PrefixStore:
    return PrefixStore("liveness", HashStore())


@pytest.fixture
def watch(store: PrefixStore) -> Iterator[Callable[..., Liveness]]:
    """The liveness of rank 0; stopped before it would end the process."""
    started: list[Liveness] = []

    def start(size: int = 2, limit_s: float = _LIMIT_S) -> Liveness:
        started.append(Liveness(store, 0, size, limit_s))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def peer() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def register(store: PrefixStore, rank: int, pid: int, machine: str | None = None) -> str:
    """Rank `rank` as its own process would announce it."""
    name = f"rank {rank} (there, process {pid})"
    place = [name, machine or module._find_machine(), pid, module._read_state(pid)[1]]
    store.set(f"place/{rank}", json.dumps(place))
    return name


def test_a_process_of_this_machine_that_was_killed_is_named_at_once(
    store: PrefixStore, watch: Callable[..., Liveness], peer: subprocess.Popen[bytes]
) -> None:
    name = register(store, 1, peer.pid)
    liveness = watch()
    assert liveness.find_dead() is None
    peer.kill()  # not yet waited for, it is a zombie
    assert liveness.find_departed() == (f"{name} died", True)
    assert liveness.find_dead() == f"{name} died"
    assert store.get("dead") == f"{name} died".encode(), "for those on other machines"


def test_another_process_under_the_same_number_is_not_taken_for_it(
    store: PrefixStore, watch: Callable[..., Liveness], peer: subprocess.Popen[bytes]
) -> None:
    name = f"rank 1 (there, process {peer.pid})"
    store.set("place/1", json.dumps([name, module._find_machine(), peer.pid, "began earlier"]))
    assert watch().find_departed() == (f"{name} died", True)


def test_who_left_in_good_order_has_not_died(
    store: PrefixStore, watch: Callable[..., Liveness], peer: subprocess.Popen[bytes]
) -> None:
    name = register(store, 1, peer.pid)
    liveness = watch()
    store.add("left/1", 1)
    peer.kill()
    peer.wait()
    assert liveness.find_dead() is None
    assert liveness.find_departed() == (f"{name} ended before the others", False)


def test_a_death_on_another_machine_is_learnt_from_those_there(
    store: PrefixStore, watch: Callable[..., Liveness]
) -> None:
    for rank in (1, 2):
        register(store, rank, os.getpid(), machine="another")
    liveness = watch(size=3)
    store.set("dead", "rank 1 (there, process 7) died")
    assert liveness.find_departed() == ("rank 1 (there, process 7) died", True)


def test_silence_is_believed_sooner_once_communication_has_failed(
    store: PrefixStore, watch: Callable[..., Liveness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BROKEN_LIMIT_S", 1.0)
    name = register(store, 1, os.getpid(), machine="another")
    departed, has_died = watch().find_departed()
    assert has_died
    assert departed == f"{name} has been silent for 1 s"


def test_who_never_came_is_missing(store: PrefixStore, watch: Callable[..., Liveness]) -> None:
    liveness = watch(size=3)
    assert liveness.describe_missing() == "rank 1, rank 2 ended before it met the others"
    register(store, 1, os.getpid())
    register(store, 2, os.getpid())
    while liveness.describe_missing() is not None:  # until they are met
        assert liveness.find_dead() is None


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_request_to_end_is_told_from_the_death_of_a_process(
    store: PrefixStore,
    watch: Callable[..., Liveness],
    peer: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    is_dead: bool,
) -> None:
    name = register(store, 1, peer.pid)
    monkeypatch.setattr(world_module._Membership, "liveness", watch())
    if is_dead:
        peer.kill()

    def run() -> Any:
        with interruption.ending_in_order([]):
            os.kill(os.getpid(), interruption.signal.SIGTERM)

    expected: Any = (LostProcessError, name) if is_dead else (RunInterruptedError, "interrupted; no checkpoint")
    with pytest.raises(expected[0]) as end:
        run()
    assert str(end.value).startswith(expected[1])
