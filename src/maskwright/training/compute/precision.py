"""The dtype to compute in: as configured, or the fastest on this machine, measured once and cached.

On a CPU the width of a model decides: what narrow layers gain in their products they lose in casts.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.models.fp8 import has_fp8
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.storage import read_json, write_text
from maskwright.training.distributed.world import World

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
_WORTHWHILE = 1.2
"""A smaller dtype is chosen only if it is this many times as fast."""
_PATIENCE_S = 1.0
_NUM_TIMED = 8
_NUM_LAYERS = 4
WIDTHS = (128, 256, 512, 768)
"""Of the layers that are timed on a CPU; those nearest to a model's speak for it."""
_CPU_ROWS, _CPU_LENGTH = 16, 64
_VOCABULARY, _RATIO = 8_192, 0.3
_HEAD_SIZE = 64


@dataclass(frozen=True)
class Precision:
    """The dtype of the matrix products; weights, norms, softmax and loss stay in fp32.

    fp8 is for the products of compiled layers; everything else then computes in bf16.
    """

    name: PrecisionName
    reason: str = "as configured"

    @property
    def needs_loss_scale(self) -> bool:
        """Gradients underflow in fp16 unless the loss is scaled up."""
        return self.name == "fp16"

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self.name)
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

    def apply(self) -> None:
        """Apply the settings that are global to the process."""
        torch.set_float32_matmul_precision("highest" if self.name == "fp32" else "high")


def check_precision(name: PrecisionName | Literal["auto"], device: torch.device) -> None:
    """Refuse a dtype that the device does not support."""
    for limited, has_it, generation in (("tf32", _has_tf32, "Ampere"), ("fp8", has_fp8, "Ada or Hopper")):
        if name == limited and not has_it(device):
            raise InputError(
                f"training.precision is {name}, which {_describe(device)} does not have; it needs an NVIDIA GPU of the"
                f" {generation} generation or later; use auto"
            )


_SHORTER: tuple[PrecisionName, ...] = ("tf32", "bf16", "fp16")
"""Those with fewer bits that training may take, in the order in which ties are settled."""


def choose_precision(name: PrecisionName | Literal["auto"], device: torch.device, width: int) -> Precision:
    """The configured precision if the device supports it; `auto` measures on first use and caches the result.

    `width` is that of the model's layers.
    """
    check_precision(name, device)
    if name == "bf16" and not _has_bf16(device):
        return Precision("fp32", "bf16 on an Apple GPU needs macOS 14")
    if name != "auto":
        return Precision(name)
    return pick(find_speeds("training", device, width, measure_speeds), _SHORTER)


def agree_on_precision(precision: Precision, world: World) -> Precision:
    """The main process's choice, because measurements differ between processes."""
    names = get_args(PrecisionName)
    chosen = names[int(world.sum_facts([names.index(precision.name) if world.is_main else 0.0])[0])]
    return precision if chosen == precision.name else Precision(chosen, "chosen by the main process")


def pick(speeds: Mapping[str, float], shorter: Sequence[PrecisionName]) -> Precision:
    """The fastest of fp32 and the `shorter`; ties go to the larger dtype, and fp16, with its small range, must also
    beat bf16.
    """
    chosen: PrecisionName = "fp32"
    for name in shorter:
        if speeds.get(name, 0.0) > _WORTHWHILE * speeds[chosen]:
            chosen = name
    if chosen == "fp32":
        others = ", ".join(f"{name} {speed:.2g}x" for name, speed in speeds.items() if name != "fp32")
        return Precision("fp32", f"nothing is clearly faster here: {others}")
    return Precision(chosen, f"{speeds[chosen]:.2g}x as fast as fp32 here")


def find_speeds(
    work: str, device: torch.device, width: int, measure: Callable[[torch.device, int], dict[str, float]]
) -> dict[str, float]:
    """How many times as fast as in fp32 a kind of work is in each dtype: measured once on a machine, and cached.

    `measure` is for a device and one of `WIDTHS`; on GPUs neither the width nor the work makes a difference.
    """
    near = min(WIDTHS, key=lambda one: abs(math.log(one / width)))
    key = _describe(device) + (f", {work}, {near} wide" if device.type == "cpu" else "")
    return _load_speeds(key) or _measure_and_remember(key, lambda: measure(device, near))


def _measure_and_remember(key: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    speeds = measure()
    file = _cache_file()
    known = _read_cache(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(known | {key: speeds}, indent=2) + "\n")
    except OSError:
        return speeds  # a home that cannot be written to: measured again next time
    return speeds


def _load_speeds(key: str) -> dict[str, float] | None:
    speeds = _read_cache(_cache_file()).get(key)
    if not isinstance(speeds, dict) or "fp32" not in speeds:
        return None
    return speeds if all(isinstance(speed, float) for speed in speeds.values()) else None


def _read_cache(file: Path) -> dict[str, dict[str, float]]:
    try:
        return read_json(file)
    except (OSError, InputError):
        return {}  # absent or damaged: it is measured and written anew


def _cache_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "maskwright" / "precision.json"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir())


def measure_speeds(device: torch.device, width: int) -> dict[str, float]:
    """How many times as fast as in fp32 layers of training size run, forward and backward; `width` is for CPUs."""
    previous = torch.get_float32_matmul_precision()
    candidates: list[PrecisionName] = ["fp32", "bf16", "fp16"]
    if not _has_bf16(device):
        candidates.remove("bf16")
    if _has_tf32(device):
        candidates.append("tf32")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what this machine lacks for a precision shows in its speed
            return time_by_turns({name: _build_pass(Precision(name), device, width) for name in candidates}, device)
    finally:
        torch.set_float32_matmul_precision(previous)


def _build_pass(precision: Precision, device: torch.device, width: int) -> Callable[[], None]:
    return _build_step(precision, width) if device.type == "cpu" else _build_products(precision, device)


def _build_step(precision: Precision, width: int) -> Callable[[], None]:
    """Forward and backward through two layers and a prediction head."""
    with torch.random.fork_rng(devices=[]):
        shape = {"hidden_size": width, "num_attention_heads": width // _HEAD_SIZE, "num_hidden_layers": 2}
        encoder = ModernBERT.from_variant("tiny", vocab_size=_VOCABULARY, **shape)
        model = MaskedLanguageModel(encoder, _VOCABULARY, mask_token_id=0, mlm_head_dropout=0.0)
    ids = torch.arange(_CPU_ROWS * _CPU_LENGTH).view(_CPU_ROWS, _CPU_LENGTH) % (_VOCABULARY - 1) + 1
    questions = model.ask(from_padded(ids), seed=0, epoch=0, ratio=_RATIO)

    def run() -> None:
        precision.apply()
        with precision.autocast(ids.device):
            sums = model.loss_sums(questions)
        sums.loss_sum.backward()

    return run


def _build_products(precision: Precision, device: torch.device) -> Callable[[], None]:
    rows, width = {"cuda": (8192, 2048)}.get(device.type, (2048, 1024))
    features = torch.randn(rows, width, device=device)
    weights = [torch.randn(width, width, device=device, requires_grad=True) for _ in range(_NUM_LAYERS)]

    def run() -> None:
        precision.apply()
        with precision.autocast(device):
            hidden = features
            for weight in weights:
                hidden = torch.nn.functional.gelu(hidden @ weight)
        hidden.sum().backward()

    return run


def time_by_turns(runs: Mapping[PrecisionName, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """How many times as fast as in fp32 a call of each is: the best of a few, or of fewer if they take long.

    By turns, and on a CPU in processor time, so that what else the machine does strikes all alike. Windows counts
    processor time in steps that are too long.
    """
    read_clock = time.process_time if device.type == "cpu" and os.name == "posix" else time.perf_counter
    seconds: dict[PrecisionName, list[float]] = {name: [] for name in runs}
    begun = time.perf_counter()
    while len(next(iter(seconds.values()))) <= _NUM_TIMED:
        for name, run in runs.items():
            start = read_clock()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            elif device.type == "mps":
                torch.mps.synchronize()
            seconds[name].append(read_clock() - start)
        if time.perf_counter() - begun > _PATIENCE_S * len(runs):
            break
    # the first call also loads kernels
    best = {name: min(found[1:] or found) for name, found in seconds.items()}
    return {name: best["fp32"] / value for name, value in best.items()}


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _has_bf16(device: torch.device) -> bool:
    return device.type != "mps" or torch.backends.mps.is_macos_or_newer(14, 0)


def _describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    if device.type == "mps":
        return f"Apple GPU of {_cpu_name()}, macOS {platform.mac_ver()[0]}, torch {torch.__version__}"
    return f"{_cpu_name()}, torch {torch.__version__}"


def _cpu_name() -> str:
    """The processor and its extensions, which decide what runs fast on it."""
    extensions = torch.backends.cpu.get_cpu_capability() + (" AMX" if torch.cpu._is_amx_tile_supported() else "")
    return f"{platform.machine()} {platform.processor()} {extensions}".replace("  ", " ")


_START = 2.0**16
_LARGEST = 2.0**24
_GROWTH_INTERVAL = 2000
"""Good steps in a row after which the scale doubles."""


class LossScale:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018), updated on the device, without synchronisation.

    Halves after a step that overflowed, doubles after many that did not.
    """

    def __init__(self, device: torch.device, values: list[float] | None = None) -> None:
        """`values` are those that `fetch` returned."""
        scale, num_good = values or [_START, 0.0]
        self.scale = torch.tensor(scale, device=device)
        self._num_good = torch.tensor(num_good, device=device)

    def fetch(self) -> list[float]:
        return [float(self.scale), float(self._num_good)]

    def is_lowest(self) -> Tensor:
        """Whether the scale cannot be lowered any further, so that an overflow has another cause."""
        return self.scale <= 1.0

    def update(self, skip: Tensor) -> None:
        """`skip` is 1 where the step overflowed, else 0."""
        overflowed = skip > 0
        num_good = torch.where(overflowed, 0.0, self._num_good + 1)
        grows = num_good >= _GROWTH_INTERVAL
        factor = torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0))
        self.scale = (self.scale * factor).clamp(1.0, _LARGEST)
        self._num_good = torch.where(grows, 0.0, num_good)
