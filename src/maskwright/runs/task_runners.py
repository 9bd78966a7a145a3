"""Who does the tasks of a preparation: this process, processes on this machine, or a Ray cluster.

All write the same shards. A process or node that is lost costs the tasks it was doing, which are then done again.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from maskwright.errors import InputError, RunError, cut_message
from maskwright.machine import hash_package
from maskwright.runs.prepare_tasks import PrepareTask
from maskwright.runs.ray_cluster import RAY, check_same_code, connect_ray, find_address, names_ray
from maskwright.storage import write_bytes

_PROCESSES = "processes"
_LOSSES = 5
"""Pools of processes that may break; the same task breaks each of them."""
_RAY_RETRIES = 10
"""How often Ray does a task again whose node is lost."""
_WAITING = 4
"""Tasks handed to Ray ahead, for each of its cores."""


class Task(Protocol):
    @property
    def name(self) -> str: ...


TaskT = TypeVar("TaskT", bound=Task)
MadeT = TypeVar("MadeT")
TaskOfJob = TypeVar("TaskOfJob", contravariant=True)
MadeOfJob = TypeVar("MadeOfJob", covariant=True)


class Job(Protocol[TaskOfJob, MadeOfJob]):
    """What is to be done with each of many tasks; it is sent to the processes that do them."""

    def give(self, task: TaskOfJob, folder: Path, /) -> Iterator[Any]:
        """What a task needs of the files in the folder, piece by piece, read where the folder is."""

    def open(
        self, num_threads: int
    ) -> AbstractContextManager[Callable[[TaskOfJob, Iterable[Any], Path], Iterator[MadeOfJob]]]:
        """What does one task after another, with what it was given: what it made, after the files of it are written."""

    def for_nodes(self) -> Job[TaskOfJob, MadeOfJob]:
        """The same for machines with another current folder, and without what only `give` needs."""


class Runner(Protocol):
    def run(self, job: Job[TaskT, MadeT], tasks: Sequence[TaskT], folder: Path) -> Iterator[tuple[TaskT, MadeT]]:
        """What the tasks make, in any order; its files are in `folder` when it comes."""


def choose_runner(on: str | None, num_workers: int) -> Runner:
    """The runner of this name: None, `processes`, `ray` or `ray://HOST:PORT`."""
    if on is None:
        return ThisProcess(num_workers)
    if on == _PROCESSES:
        return LocalProcesses(num_workers)
    if names_ray(on):
        return RayCluster(find_address(on))
    raise InputError(f"'{on}' does no tasks; known are {_PROCESSES}, {RAY} and {RAY}://HOST:PORT")


class ThisProcess:
    """One task after another, so that each can know of those before; tokenized by threads."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def run(self, job: Job[TaskT, MadeT], tasks: Sequence[TaskT], folder: Path) -> Iterator[tuple[TaskT, MadeT]]:
        with job.open(self._num_workers) as do:
            for task in tasks:
                for made in do(task, job.give(task, folder), folder):
                    yield task, made


class LocalProcesses:
    """A task in each of several processes, which write into the folder themselves."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def run(self, job: Job[TaskT, MadeT], tasks: Sequence[TaskT], folder: Path) -> Iterator[tuple[TaskT, MadeT]]:
        waiting = list(tasks)
        for _ in range(_LOSSES):
            done: set[str] = set()
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(min(self._num_workers, len(waiting)) or 1, context)
            try:
                futures = {pool.submit(_do_all, job, task, folder): task for task in waiting}
                for future in as_completed(futures):
                    task = futures[future]
                    for made in future.result():
                        yield task, made
                    done.add(task.name)
                return
            except BrokenProcessPool:
                waiting = [task for task in waiting if task.name not in done]
            finally:
                pool.shutdown(cancel_futures=True)
        raise RunError(
            f"processes that prepare text were ended {_LOSSES} times, perhaps for want of memory; what is finished is"
            " kept, the same command goes on with it (--workers with fewer of them)"
        )


def _do_all(job: Job[TaskT, MadeT], task: TaskT, folder: Path) -> list[MadeT]:
    with job.open(1) as do:
        return list(do(task, job.give(task, folder), folder))


class RayCluster:
    """A task on each core of a cluster; shards come back to this process, so the nodes need no disk in common."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def run(self, job: Job[TaskT, MadeT], tasks: Sequence[TaskT], folder: Path) -> Iterator[tuple[TaskT, MadeT]]:
        ray = connect_ray(self._address)
        kept = ray.put(job.for_nodes())
        code = hash_package()
        make = ray.remote(_do_for_another).options(num_cpus=1, num_returns="streaming", max_retries=_RAY_RETRIES)
        waiting = list(tasks)
        running: dict[Any, tuple[TaskT, list[Any]]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1))):
                    task = waiting.pop(0)
                    given = [ray.put(piece) for piece in job.give(task, folder)]
                    running[make.remote(kept, task, given, code)] = (task, given)
                ready, _ = ray.wait(list(running), num_returns=1, timeout=10.0, fetch_local=False)
                for stream in ready:
                    try:
                        made, files = ray.get(next(stream))
                    except StopIteration:
                        del running[stream]
                        continue
                    for name, content in files.items():
                        write_bytes(folder / name, content)
                    yield running[stream][0], made
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | RunError):
                raise error.cause from None
            raise RunError(f"a task failed on the Ray cluster: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise RunError(
                f"the Ray cluster lost tasks: {cut_message(error)}; what is finished is kept, the same"
                " command goes on with it"
            ) from error
        finally:
            for stream in running:
                ray.cancel(stream, force=True)


def _do_for_another(
    job: Job[TaskT, MadeT], task: TaskT, given: list[Any], code: str
) -> Iterator[tuple[MadeT, dict[str, bytes]]]:
    """What a task made, with the content of its files by name; runs on a node."""
    import ray

    check_same_code(code)
    with tempfile.TemporaryDirectory() as temporary, job.open(1) as do:
        folder = Path(temporary)
        for made in do(task, (ray.get(piece) for piece in given), folder):
            files = [file for file in folder.rglob("*") if file.is_file() and not file.name.startswith(".")]
            yield made, {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
            for file in files:
                file.unlink()


def skip_finished(task: PrepareTask, finished: Sequence[str]) -> PrepareTask:
    """The task without the parts that an earlier start has finished."""
    return replace(task, finished=tuple(name for name in finished if name.startswith(f"{task.name}-")))
