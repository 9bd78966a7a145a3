"""Predictions on a Ray cluster: byte for byte those of one machine, in order, whoever is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.inference import kept_answers
from maskwright.models.files import model_folder
from maskwright.runs import predict, predict_on_ray, ray_cluster

Command = Callable[..., Any]
NUM_ROWS = 107


class _RayError(Exception):
    pass


class _RayTaskError(_RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Call:
    def __init__(self, cluster: StandIn, actor: Any, name: str, given: tuple[Any, ...]) -> None:
        self.cluster, self.actor, self.name, self.given = cluster, actor, name, given

    def run(self) -> Any:
        if self.name == "answer" and not self.actor.is_lost:
            self.cluster.num_answers += 1
            self.actor.is_lost = self.cluster.loses(self.cluster.num_answers, self.given)
        if self.actor.is_lost:
            raise _RayError("its node has died")
        try:
            return getattr(self.actor.instance, self.name)(*self.given)
        except Exception as error:
            raise _RayTaskError(error) from error


class _Actor:
    def __init__(self, cluster: StandIn, kind: type) -> None:
        self.cluster, self.instance, self.is_lost = cluster, kind(), False
        cluster.alive.append(self)

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: _Call(self.cluster, self, name, given))


class StandIn:
    """For Ray's module: calls are done when they are asked for, in any order, and some lose their actor."""

    exceptions = SimpleNamespace(RayError=_RayError, RayTaskError=_RayTaskError)

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.num_answers = 0
        self.alive: list[_Actor] = []
        self.most_alive = 0
        self.loses: Callable[[int, tuple[Any, ...]], bool] = lambda number, given: False
        self.resources = {"CPU": 3.0}

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def put(self, value: Any) -> Any:
        return value

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: _Actor(self, kind)))

    def wait(self, calls: list[_Call], num_returns: int, timeout: float) -> tuple[list[_Call], list[_Call]]:
        self.most_alive = max(self.most_alive, len(self.alive))
        return [self.random.choice(calls)], []

    def get(self, call: _Call) -> Any:
        return call.run()

    def kill(self, actor: _Actor) -> None:
        self.alive.remove(actor)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(predict_on_ray, "connect_ray", lambda address: stand_in)
    return stand_in


@pytest.fixture(autouse=True)
def _parts_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_CPU_PART", (9, 1 << 18))
    monkeypatch.setattr(kept_answers, "_BLOCK_RECORDS", 4)


@pytest.fixture
def source(tmp_path: Path, sentences: list[str]) -> Path:
    path = tmp_path / "texts.jsonl"
    texts = [None if number % 13 == 5 else sentences[number % 60] for number in range(NUM_ROWS)]
    path.write_text("".join(json.dumps({"text": text, "id": f"n{n}"}) + "\n" for n, text in enumerate(texts)))
    return path


def list_words(run: Path, source: Path, out: Path, *more: object) -> list[object]:
    return ["predict", "embed", run, source, "--device", "cpu", "--out", out, *more]


@pytest.fixture
def whole(command: Command, trained_run: Path, source: Path, tmp_path: Path) -> bytes:
    """The file of one process."""
    result = command(*list_words(trained_run, source, tmp_path / "whole.parquet"))
    assert result.code == 0, result
    return (tmp_path / "whole.parquet").read_bytes()


def test_a_cluster_gives_the_same_bytes_whoever_is_lost(
    cluster: StandIn, command: Command, trained_run: Path, source: Path, tmp_path: Path, whole: bytes
) -> None:
    cluster.loses = lambda number, given: number in (2, 3, 7)
    result = command(*list_words(trained_run, source, tmp_path / "out.parquet", "--on", "ray"))
    assert result.code == 0, result
    assert (tmp_path / "out.parquet").read_bytes() == whole
    assert cluster.most_alive == 3
    assert cluster.alive == []
    assert result.err.count("an actor is lost: _RayError: its node has died; others answer its") == 3


@pytest.mark.parametrize("kind", ["embed", "fill-mask"])
def test_the_process_that_asks_reads_no_weights(
    cluster: StandIn,
    command: Command,
    trained_run: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    outlined: list[Any] = []
    outline = predict.outline_kind

    def outline_without_weights(*given: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(model_folder, "load_tensors", lambda path: pytest.fail(f"{path} is read"))
            outlined.append(outline(*given, **options))
        return outlined[0]

    monkeypatch.setattr(predict, "outline_kind", outline_without_weights)
    text = source.read_text().replace(". ", " [MASK]. ").replace('."', ' [MASK]."')
    source.write_text(text)
    words = ["predict", kind, trained_run, source, "--device", "cpu", "--out", tmp_path / "out.jsonl", "--on", "ray"]
    result = command(*words)
    assert result.code == 0, result
    (asked,) = outlined
    assert {weight.device.type for weight in asked.module.state_dict().values()} == {"meta"}


def test_what_is_kept_of_a_broken_command_is_not_asked_again(
    cluster: StandIn, command: Command, trained_run: Path, source: Path, tmp_path: Path, whole: bytes
) -> None:
    out = tmp_path / "out.parquet"
    lost = {"n60"}

    def loses(number: int, given: tuple[Any, ...]) -> bool:
        return bool(lost) and given[1] == 54

    cluster.loses = loses
    result = command(*list_words(trained_run, source, out, "--on", "ray://somewhere:10001"))
    assert result.code == 1
    assert "error: the rows from 54 on were lost 10 times with the actors that answered them" in result.err
    assert "54 answers are kept beside" in result.err
    assert not out.exists()
    assert cluster.alive == []
    lost.clear()
    asked: list[int] = []
    cluster.loses = lambda number, given: bool(asked.append(given[1]))  # type: ignore[func-returns-value]
    assert command(*list_words(trained_run, source, out, "--on", "ray")).code == 0
    assert min(asked) == 54
    assert out.read_bytes() == whole


def test_one_machine_goes_on_with_what_a_cluster_began(
    cluster: StandIn, command: Command, trained_run: Path, source: Path, tmp_path: Path, whole: bytes
) -> None:
    out = tmp_path / "out.parquet"
    cluster.loses = lambda number, given: given[1] >= 27
    assert command(*list_words(trained_run, source, out, "--on", "ray")).code == 1
    result = command(*list_words(trained_run, source, out))
    assert "going on after 27 answers" in result.err
    assert out.read_bytes() == whole


def test_a_mistake_in_the_input_is_told_in_one_sentence(
    cluster: StandIn,
    command: Command,
    trained_run: Path,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out.jsonl"
    words = list_words(trained_run, source, out)
    command(*words, "--on", "spark").assert_refused("'spark' answers no texts; known are ray and ray://HOST:PORT")
    command(*words[:4], "--on", "ray").assert_refused("--on ray answers to a file, part by part; name it with --out")
    command(*words[:4], "--out", out, "--device", "cuda:1", "--on", "ray").assert_refused("chooses among cpu and cuda")
    command(*words[:4], "--out", out, "--device", "cuda", "--on", "ray").assert_refused("the Ray cluster has no GPU")
    with monkeypatch.context() as patch:
        patch.setattr(ray_cluster, "hash_package", lambda: "another")
        result = command(*words, "--on", "ray")
        assert result.code == 1
        assert "has another version of maskwright than this process; install the same one on all nodes" in result.err

    def refuse(self: Any, items: Any, num_before: int) -> None:
        raise InputError(f"text {num_before + 1} is too odd")

    monkeypatch.setattr(predict_on_ray._Predictor, "answer", refuse)
    command(*words, "--on", "ray").assert_refused("is too odd")
    assert cluster.alive == []
    assert not out.exists()


def test_a_missing_ray_is_told(
    command: Command, trained_run: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    ray_cluster.connect_ray.cache_clear()
    result = command(*list_words(trained_run, source, tmp_path / "out.jsonl", "--on", "ray"))
    result.assert_refused("--on ray needs the package `ray`: pip install 'maskwright[cluster]'")


@pytest.fixture
def nodes() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="Ray clusters need the extra `cluster`")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    ray_cluster.connect_ray.cache_clear()
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        ray_cluster.connect_ray.cache_clear()


@pytest.mark.slow
def test_nodes_that_are_killed_change_no_byte(
    nodes: Any,
    command: Command,
    trained_run: Path,
    source: Path,
    tmp_path: Path,
    whole: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doomed = [nodes.add_node(num_cpus=1)]
    original = predict_on_ray.RayPredictors._take_answer
    num_taken = 0

    def take_and_kill(self: Any, *given: Any) -> None:
        nonlocal num_taken
        num_taken += 1
        if num_taken == 2:
            nodes.remove_node(doomed.pop(), allow_graceful=False)
            nodes.add_node(num_cpus=1)
        original(self, *given)

    monkeypatch.setattr(predict_on_ray.RayPredictors, "_take_answer", take_and_kill)
    result = command(*list_words(trained_run, source, tmp_path / "out.parquet", "--on", "ray"))
    assert result.code == 0, result
    assert not doomed
    assert (tmp_path / "out.parquet").read_bytes() == whole
