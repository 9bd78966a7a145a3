"""`maskwright launch`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from maskwright.cli.train import ConfigFile, Settings, load_settings
from maskwright.terminal import echo


class _Target(StrEnum):
    SLURM = "slurm"
    RAY = "ray"
    K8S = "k8s"
    SKYPILOT = "skypilot"


def launch(
    target: Annotated[_Target, typer.Argument(help="What runs jobs on the cluster.", show_default=False)],
    settings: Settings = None,
    config_file: ConfigFile = None,
    nodes: Annotated[int, typer.Option(help="Machines.", min=1)] = 1,
    gpus: Annotated[int, typer.Option(help="GPUs of each machine; 0: train on CPUs.", min=0)] = 8,
    min_nodes: Annotated[
        int | None, typer.Option(help="slurm: go on with as few machines if some are lost.", min=1)
    ] = None,
    restarts: Annotated[int, typer.Option(help="How often torchrun starts again after a failure.", min=0)] = 3,
    hours: Annotated[float | None, typer.Option(help="slurm: the time limit; unset: 24.")] = None,
    partition: Annotated[str | None, typer.Option(help="slurm: the partition.")] = None,
    account: Annotated[str | None, typer.Option(help="slurm: the account.")] = None,
    image: Annotated[str | None, typer.Option(help="k8s, skypilot: a container image with maskwright.")] = None,
    namespace: Annotated[str | None, typer.Option(help="k8s: the namespace.")] = None,
    runtime: Annotated[
        str | None, typer.Option(help="k8s: the ClusterTrainingRuntime; unset: torch-distributed.")
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(metavar="NAME:/PATH", help="k8s: a volume claim; skypilot: a bucket; run.out is below PATH."),
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="skypilot: the kind of GPU, such as H100.")] = None,
    address: Annotated[str | None, typer.Option(help="ray: the address of the cluster's dashboard.")] = None,
    setup: Annotated[str, typer.Option(help="A shell command that every machine runs first.")] = "",
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="An environment variable of the job.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; unset: named after the run.")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the job too.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another job's file.")] = False,
) -> None:
    """Write the job of a training run for a cluster: a file for Slurm, Ray, Kubernetes or SkyPilot.

    The job compares its machines (doctor --nodes), trains with torchrun, and resumes the run when it is started again.

    Examples:

        maskwright launch slurm bert_standard data.train=data/wiki --nodes 4 --partition gpu

        maskwright launch k8s config.yaml run.out=/runs --nodes 2 --image IMAGE --volume claim:/runs
    """
    from maskwright.cluster.launch import launch as write
    from maskwright.errors import InputError

    pairs = [word.partition("=") for word in env or ()]
    for name, sign, _ in pairs:
        if not sign or not name.isidentifier():
            raise InputError(f"--env takes NAME=VALUE, not '{name}'")
    file = write(
        target.value,
        load_settings(settings, config_file),
        nodes=nodes,
        gpus=gpus,
        min_nodes=min_nodes,
        restarts=restarts,
        hours=hours,
        partition=partition,
        account=account,
        image=image,
        namespace=namespace,
        runtime=runtime,
        volume=volume,
        accelerator=accelerator,
        address=address,
        setup=setup,
        environment={name: value for name, _, value in pairs},
        out=out,
        submit=submit,
        overwrite=overwrite,
    )
    echo(f"{file}  the job" + (", submitted" if submit else "; add --submit to submit it"))
