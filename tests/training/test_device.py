"""The device that is chosen, and what Apple GPUs are asked for and spared; their availability is pretended here."""

from __future__ import annotations

import platform
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

import maskwright as mw
from maskwright.errors import InputError, InputWarning
from maskwright.objectives import loss
from maskwright.sections.training import TrainingConfig
from maskwright.training.compute import device as device_module
from maskwright.training.compute import precision, trial
from maskwright.training.compute.compiling import should_compile, should_record
from maskwright.training.compute.device import choose_device, keeping_freed_memory
from maskwright.training.compute.parallel import place_model
from maskwright.training.distributed.world import World
from tiny_bert import build_tiny_bert

CPU, MPS = torch.device("cpu"), torch.device("mps")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets which GPUs torch finds, and what a trial on an Apple GPU says."""

    def have(*, cuda: bool = False, mps: bool = False, trouble: str | None = None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(device_module, "find_trouble", lambda one: trouble)

    return have


@pytest.mark.parametrize(
    ("found", "expected"),
    [({"cuda": True, "mps": True}, "cuda"), ({"cuda": True}, "cuda"), ({"mps": True}, "mps"), ({}, "cpu")],
)
def test_auto_takes_nvidia_s_gpu_then_apple_s_then_the_cpu(machine: Any, found: Any, expected: str) -> None:
    machine(**found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_device("auto").type == expected


def test_an_apple_gpu_on_which_a_step_fails_is_left_alone_with_a_sentence(machine: Any) -> None:
    machine(mps=True, trouble="cummax is not implemented")
    with pytest.warns(InputWarning, match=r"the Apple GPU is not used, because a trial step failed \(cummax is not"):
        assert choose_device("auto") == CPU
    assert choose_device("mps") == MPS  # who names it gets it


@pytest.mark.parametrize(("num_gpus", "expected"), [(1, [0, 0, 0]), (2, [0, 1, 0]), (3, [0, 1, 2])])
def test_processes_take_turns_where_there_are_fewer_gpus(
    machine: Any, monkeypatch: pytest.MonkeyPatch, num_gpus: int, expected: list[int]
) -> None:
    machine(cuda=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for rank, index in enumerate(expected):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert choose_device("auto") == torch.device("cuda", index)


def test_several_processes_do_not_share_an_apple_gpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(mps=True)
    monkeypatch.setattr(device_module, "is_launched", lambda: True)
    assert choose_device("auto") == CPU
    with pytest.raises(InputError, match="which several processes cannot share"):
        choose_device("mps")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mps", "torch finds no Apple GPU on this machine; use auto or cpu"),
        ("cuda", "this machine has no CUDA GPU"),
        ("gpu", "known are auto, cpu, cuda, cuda:N and mps"),
    ],
)
def test_a_device_that_is_not_there_is_refused(machine: Any, name: str, message: str) -> None:
    machine()
    with pytest.raises(InputError, match=f"training.device is '{name}'.*{message}"):
        choose_device(name)


def test_what_apple_gpus_cannot_do_falls_back_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(InputWarning, match=r"training\.compile is for NVIDIA GPUs and CPUs; on this Apple GPU"):
        assert not should_compile(TrainingConfig(compile=True), MPS, World())
    assert not should_compile(TrainingConfig(), MPS, World())
    assert not should_record(None, TrainingConfig(), MPS, World())  # type: ignore[arg-type]
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: version <= (13, 3))
    old = precision.choose_precision("bf16", MPS, 128)
    assert (old.name, old.reason) == ("fp32", "bf16 on an Apple GPU needs macOS 14")
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: True)
    assert precision.choose_precision("bf16", MPS, 128).name == "bf16"
    for name in ("fp8", "tf32"):
        with pytest.raises(InputError, match=f"training.precision is {name}.*needs an NVIDIA GPU"):
            precision.choose_precision(name, MPS, 128)  # type: ignore[arg-type]


class _Float64Watch(TorchDispatchMode):
    """Notes operations that make float64, which Apple GPUs refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        result = function(*args, **(options or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor) and one.dtype == torch.float64:
                self.found.add(str(function))
        return result


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Float64Watch]:
    """Sums are those of a device without float64."""
    monkeypatch.setitem(loss._SUM_DTYPES, "cpu", torch.float32)
    trial.find_trouble.cache_clear()
    yield _Float64Watch()
    trial.find_trouble.cache_clear()


def test_the_trial_works_here_and_says_what_does_not(watch: _Float64Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    with watch:
        assert trial.find_trouble(CPU) is None
    assert watch.found == set()
    trial.find_trouble.cache_clear()
    monkeypatch.setattr(torch.Tensor, "cummax", None)
    assert "not callable" in str(trial.find_trouble(CPU))


@pytest.mark.parametrize(
    "optimizer",
    [
        "adamw",
        "muon",
        "lamb",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("stable_adamw", "novograd", "lion", "sgd")),
    ],
)
def test_pre_training_makes_no_float64(
    watch: _Float64Watch, tokenizer: Any, sentences: list[str], optimizer: Any
) -> None:
    model = mw.MaskedLanguageModel(build_tiny_bert(tokenizer, max_position_embeddings=32), tokenizer=tokenizer)
    batches = mw.create_mlm_dataset(sentences, tokenizer, batch_size=8, max_length=32)
    training = mw.TrainingConfig(device="cpu", precision="fp32", log_every_steps=1, average_decay=0.9)
    trainer = mw.Trainer(model, mw.OptimizerConfig(type=optimizer, learning_rate=1e-3), training=training)
    with watch:
        history = trainer.fit(batches, batches, epochs=1, verbose=False)
    assert history.history["val_loss"]
    assert watch.found == set()


@pytest.mark.parametrize("task", ["classification", "multi-label", "regression", "ner", "qa"])
def test_fine_tuning_makes_no_float64(
    watch: _Float64Watch, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    rows: dict[str, list[Any]] = {
        "classification": [("the cat likes it", "good"), ("a dog sees it", "bad")],
        "multi-label": [("the cat likes it", ["a", "b"]), ("a dog sees it", ["b"])],
        "regression": [("the cat likes it", 0.5), ("a dog sees it", 0.1), ("it rains", 0.7)],
        "ner": [(["the", "cat"], ["O", "B-X"]), (["a", "dog"], ["O", "B-Y"])],
        "qa": [("who likes it", "the cat likes it", "the cat"), ("who sees it", "a dog sees it", "a dog")],
    }
    fit = mw.Trainer.__mro__[1].fit

    def fit_watched(*given: Any, **named: Any) -> Any:
        with watch:
            return fit(*given, **named)

    monkeypatch.setattr(mw.Trainer.__mro__[1], "fit", fit_watched)
    finished = mw.finetune(
        task,  # type: ignore[arg-type]
        tmp_path / "run",
        model=build_tiny_bert(tokenizer, max_position_embeddings=32),
        tokenizer=tokenizer,
        train=rows[task] * 4,
        validation=rows[task],
        epochs=1,
        settings={"training.device": "cpu", "training.precision": "fp32"},
        console=Console(quiet=True),
    )
    assert finished.figures[0]["steps"] == 1
    assert watch.found == set()


def test_similarity_is_trained_on_the_cpu_beside_an_apple_gpu(
    machine: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers of texts need float64; nothing else would run here, where there is no such GPU."""
    machine(mps=True)
    pairs = [("the cat sees a road", "a cat sees the road"), ("it rains", "every student likes it")] * 4
    finished = mw.finetune(
        "similarity",
        tmp_path / "run",
        model=build_tiny_bert(tokenizer, max_position_embeddings=32),
        tokenizer=tokenizer,
        train=pairs,
        validation=pairs,
        epochs=1,
        settings={"training.precision": "fp32"},
    )
    assert "in float64, which Apple GPUs lack: on the CPU" in capsys.readouterr().out
    assert next(finished.model.parameters()).device == CPU


def test_parts_of_a_model_are_not_for_processes_that_share_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    many = World(rank=0, size=2)
    model: Any = torch.nn.Linear(1, 1)
    with pytest.raises(InputError, match="parallel=fsdp needs a GPU for each process"):
        place_model(model, precision.Precision("fp32"), many, torch.device("cuda"), "fsdp", "fp32")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_a_step_on_a_cpu_reuses_the_memory_of_the_last_one() -> None:
    def count_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(num_pages, resource.getpagesize() // 4)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def count_resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    num_pages = 12_000
    with keeping_freed_memory(CPU):
        assert min(count_faults() for _ in range(4)) < num_pages / 10
        resident = count_resident()
    assert count_resident() < resident - num_pages / 2, "it is given back in the end"
