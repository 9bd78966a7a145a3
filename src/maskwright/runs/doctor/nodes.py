"""`maskwright doctor --nodes` under torchrun: do all machines of a job have the same code and data."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from maskwright.config import Config
from maskwright.data.shards import find_prepared, read_manifest
from maskwright.errors import cut_message
from maskwright.machine import hash_package
from maskwright.runs.doctor.findings import CheckUp, Finding, format_bytes
from maskwright.runs.doctor.settings import find_existing
from maskwright.sections.data import SourceConfig, build_sources
from maskwright.text.sources import fingerprint
from maskwright.training.compute.device import choose_device
from maskwright.training.distributed.world import World, join_world, leave_world

_MESSAGE_BYTES = 8192
_REDUCED_BYTES = 64 << 20
_REPEATS = 3
_MOST_CLOCK_S = 2.0
_LEAST_FREE_BYTES = 10 << 30
_LEAST_GPU_RATE = 1e9
"""Bytes a second; below it the exchange of gradients takes longer than most steps."""
_SHOWN = 3


@dataclass(frozen=True)
class NodeFacts:
    """What one process finds on its machine."""

    rank: int
    host: str
    code: str
    """A hash of this package's files, and the versions of Python and PyTorch."""
    data: str
    """A hash of what the run reads; an error where it cannot be read."""
    device: str
    clock_s: float
    free_bytes: int


def examine_nodes(config: Config) -> CheckUp:
    """The same findings in every process of the job: what differs between machines, and how fast they exchange sums."""
    device = choose_device(config.training.device)
    world = join_world(device.type == "cuda")
    try:
        facts = _gather(_find_facts(config, world, device), world)
        return CheckUp([*compare_nodes(facts), _check_exchange(world, device)])
    finally:
        leave_world()


def compare_nodes(facts: Sequence[NodeFacts]) -> list[Finding]:
    """The findings about the facts of all processes."""
    hosts = sorted({one.host for one in facts})
    unreadable = [one for one in facts if one.data.startswith("error: ")]
    if unreadable:
        text = f"{unreadable[0].host} cannot read the data: {unreadable[0].data.removeprefix('error: ')}"
        data = Finding("data", "problem", text, "put the data on a disk that all machines share, or in a store")
    else:
        data = _check_same(facts, "data", "copy the same files to all machines, or read them from one place")
    spread = max(one.clock_s for one in facts) - min(one.clock_s for one in facts)
    least = min(facts, key=lambda one: one.free_bytes)
    is_full = least.free_bytes < _LEAST_FREE_BYTES
    devices = Counter(one.device for one in facts)
    return [
        Finding("nodes", "OK", f"{len(facts)} processes on {len(hosts)} machines: {', '.join(hosts)}"),
        _check_same(facts, "code", "install the same version of maskwright and PyTorch on all machines"),
        data,
        Finding.judge(
            "devices",
            ", ".join(f"{count} x {name}" for name, count in devices.most_common()),
            None if len(devices) == 1 else "every step waits for the slowest; use machines of one kind",
        ),
        Finding.judge(
            "clock",
            f"clocks differ by up to {spread:.1f} s",
            None if spread <= _MOST_CLOCK_S else "set the clocks (chrony or ntpd), so that logs and time limits agree",
        ),
        Finding.judge(
            "disk",
            f"{format_bytes(least.free_bytes)} free at run.out on {least.host}, the fullest",
            "free space on it, or set run.out to another disk" if is_full else None,
        ),
    ]


def _check_same(facts: Sequence[NodeFacts], name: str, advice: str) -> Finding:
    """A problem names the machines that differ from the most frequent value, and both values."""
    found = Counter(getattr(one, name) for one in facts)
    ((common, _),) = found.most_common(1)
    others = [one for one in facts if getattr(one, name) != common]
    if not others:
        return Finding(name, "OK", f"the same on all machines ({common})")
    alike = {one.host for one in facts if getattr(one, name) == common}
    names = [*dict.fromkeys(f"{one.host} (rank {one.rank})" if one.host in alike else one.host for one in others)]
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    text = f"{shown}: {getattr(others[0], name)}, which is not that of the others, {common}"
    return Finding(name, "problem", text, advice)


def _find_facts(config: Config, world: World, device: torch.device) -> NodeFacts:
    try:
        data = _hash_data(config)
    except (ValueError, RuntimeError, OSError) as error:  # told by the finding, in all processes
        data = f"error: {cut_message(error, 500)}"
    world.sum_facts([0.0])  # the clocks are read together, whoever was slow with the data
    return NodeFacts(
        rank=world.rank,
        host=platform.node(),
        code=f"{hash_package()}, Python {platform.python_version()}, PyTorch {torch.__version__}",
        data=data,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        clock_s=time.time(),
        free_bytes=shutil.disk_usage(find_existing(Path(config.run.out))).free,
    )


def _hash_data(config: Config) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for given in (config.data.train, config.data.validation):
        if given is None:
            continue
        prepared = find_prepared(given, config.data.cache_gb) if isinstance(given, str) else None
        if prepared is not None:
            digest.update(str(read_manifest(prepared)["key"]).encode())
            continue
        sources: list[SourceConfig] = build_sources(given)
        files: list[Any] = [file for source in sources for file in fingerprint(source)]
        digest.update(json.dumps([(file["size"], file["hash"]) for file in files]).encode())
    return digest.hexdigest()


def _gather(facts: NodeFacts, world: World) -> list[NodeFacts]:
    """Those of all processes, in the order of their ranks; as text, since nothing here is unpickled."""
    if world.size == 1:
        return [facts]
    message = json.dumps(asdict(facts)).encode()[:_MESSAGE_BYTES].ljust(_MESSAGE_BYTES)
    own = torch.from_numpy(np.frombuffer(message, np.uint8).copy())
    found = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(found, own, group=world.control)
    return [NodeFacts(**json.loads(bytes(one.tolist()))) for one in found]


def _check_exchange(world: World, device: torch.device) -> Finding:
    """The rate at which a ring would move the bytes of an all-reduce; as fast as the slowest link."""
    if world.size == 1:
        return Finding("exchange", "OK", "one process, nothing to exchange")
    values: Tensor = torch.ones(_REDUCED_BYTES // 4, device=device)
    world.sum(values)  # connections are made at the first
    _wait(device)
    begun = time.perf_counter()
    for _ in range(_REPEATS):
        world.sum(values)
    _wait(device)
    seconds = (time.perf_counter() - begun) / _REPEATS
    moved = 2 * (world.size - 1) / world.size * _REDUCED_BYTES
    rate = world.sum_facts([moved / seconds])[0] / world.size
    is_slow = device.type == "cuda" and rate < _LEAST_GPU_RATE
    return Finding.judge(
        "exchange",
        f"an all-reduce of {_REDUCED_BYTES >> 20} MiB takes {seconds * 1e3:.0f} ms: {rate / 1e9:.2f} GB/s per process",
        "check that NCCL uses the fast network (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)" if is_slow else None,
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
