"""`maskwright launch`: write the file of a job that trains a run on many machines, and submit it on request."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from maskwright.cluster.jobs import Job, build_k8s, build_ray, build_skypilot, build_slurm
from maskwright.config import Config, Settings, open_config
from maskwright.errors import InputError, RunError, check_count
from maskwright.storage import dump_yaml, write_text
from maskwright.stores.addresses import is_store_url
from maskwright.suggestions import OVERWRITE

Target = Literal["slurm", "ray", "k8s", "skypilot"]


@dataclass(frozen=True)
class _Kind:
    build: Callable[[Job], str]
    suffix: str
    submit: tuple[str, ...]
    """The command that takes the file as its last word."""
    client: str
    """Where its program comes from."""
    program: str = ""
    """What the command needs; empty: its first word."""


_KINDS = {
    "slurm": _Kind(build_slurm, ".sbatch", ("sbatch",), "a login node of the Slurm cluster"),
    "ray": _Kind(build_ray, ".sh", ("bash",), "pip install 'ray[default]'", "ray"),
    "k8s": _Kind(build_k8s, ".yaml", ("kubectl", "apply", "-f"), "kubectl"),
    "skypilot": _Kind(build_skypilot, ".yaml", ("sky", "jobs", "launch", "--yes"), "pip install skypilot"),
}
_ONLY = {
    "partition": ("slurm",),
    "account": ("slurm",),
    "hours": ("slurm",),
    "min_nodes": ("slurm",),
    "image": ("k8s", "skypilot"),
    "namespace": ("k8s",),
    "runtime": ("k8s",),
    "volume": ("k8s", "skypilot"),
    "accelerator": ("skypilot",),
    "address": ("ray",),
}


def launch(
    target: Target,
    config: Config | Mapping[str, Any] | str | Path | None = None,
    settings: Settings = (),
    *,
    out: str | Path | None = None,
    submit: bool = False,
    overwrite: bool = False,
    nodes: int = 1,
    gpus: int = 8,
    restarts: int = 3,
    setup: str = "",
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Path:
    """Write the job of a training run for `target`, and submit it if asked; the file.

    `config` and `settings` are those of `train`. `options` are the other fields of `maskwright.cluster.jobs.Job`; one
    that the target has no use for is refused.
    """
    kind = _KINDS.get(target)
    if kind is None:
        raise InputError(f"'{target}' is no kind of cluster; known are {', '.join(_KINDS)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in _ONLY:
            raise InputError(f"'{name}' is no option of a job; known are {', '.join(_ONLY)}")
        if target not in _ONLY[name]:
            raise InputError(f"{name} is an option of {' and '.join(_ONLY[name])}, not of {target}; leave it out")
    _check(target, nodes, gpus, restarts, given)
    settled = open_config(config, settings)
    if target == "slurm" and not setup:  # nodes share the disk that this Python is on
        setup = f'export PATH="{Path(sys.executable).parent}:$PATH"'
    job = Job(
        settled.run.name,
        dump_yaml(settled.model_dump(by_alias=True, mode="json")),
        nodes=nodes,
        gpus=gpus,
        restarts=restarts,
        setup=setup,
        environment=environment or {},
        **given,
    )
    _check_places(target, settled, job)
    if submit:
        _check_client(kind)
    file = Path(out or f"{settled.run.name}-{target}{kind.suffix}")
    text = kind.build(job)
    if file.exists() and not overwrite and file.read_text(encoding="utf-8") != text:
        raise InputError(f"{file} exists and holds another job; name another file with --out, or add {OVERWRITE}")
    write_text(file, text)
    if submit:
        _submit(kind, file)
    return file


def _check(target: str, nodes: int, gpus: int, restarts: int, given: Mapping[str, Any]) -> None:
    check_count("nodes", nodes)
    check_count("gpus", gpus, 0)
    check_count("restarts", restarts, 0)
    if "min_nodes" in given:
        check_count("min_nodes", given["min_nodes"])
        if given["min_nodes"] > nodes:
            raise InputError(f"min_nodes is {given['min_nodes']}, more than nodes, {nodes}")
    if "hours" in given and not 0 < given["hours"] < 10_000:
        raise InputError(f"hours is {given['hours']}; expected the time limit of the job in hours")
    if target == "k8s" and "image" not in given:
        raise InputError("a job of Kubernetes runs in an image with maskwright in it; name one with --image")
    if target == "skypilot" and gpus and "accelerator" not in given:
        raise InputError("name the kind of GPU with --accelerator, such as H100, or give --gpus 0")
    volume = given.get("volume")
    if volume is not None and not volume.partition(":")[2].startswith("/"):
        raise InputError(f"the volume is '{volume}'; expected NAME:/PATH, the path where the machines find it")


def _check_places(target: str, config: Config, job: Job) -> None:
    """Refuse what the machines of a cluster without the user's own disk would lose or not find."""
    if target not in ("k8s", "skypilot"):
        return
    path = "" if job.volume is None else job.volume.partition(":")[2]
    if config.run.store is None and not _is_in_volume(config.run.out, path):
        raise InputError(
            f"run.out is {config.run.out}, which the job's machines lose when they end; keep the run in a store"
            " (run.store=s3://BUCKET/runs), or name a volume with --volume NAME:/PATH and set run.out to a folder in it"
        )
    sources = [config.data.train] if isinstance(config.data.train, str) else [one.path for one in config.data.train]
    for source in sources:
        is_there = is_store_url(source) or source.startswith(("hf:", "builtin:")) or _is_in_volume(source, path)
        if not is_there:
            raise InputError(
                f"data.train is {source}, which the job's machines do not have; put it in a store (s3://, gs://) or in"
                " the job's volume (--volume)"
            )


def _is_in_volume(place: str, path: str) -> bool:
    return bool(path) and Path(place).is_relative_to(path)


def _check_client(kind: _Kind) -> None:
    program = kind.program or kind.submit[0]
    if shutil.which(program) is None:
        raise InputError(
            f"there is no {program} here to submit the job with; it comes with {kind.client}; without --submit the file"
            " is written alone"
        )


def _submit(kind: _Kind, file: Path) -> None:
    done = subprocess.run([*kind.submit, str(file)], check=False)  # noqa: S603 (the file was just written)
    if done.returncode:
        raise RunError(f"{' '.join(kind.submit)} {file} failed with exit code {done.returncode}; the file stays")
