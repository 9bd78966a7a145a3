"""torchrun on the nodes of a Ray cluster: `python -m maskwright.cluster.on_ray`, the entrypoint of `launch ray`.

One task for each node starts torchrun there with the configuration in MASKWRIGHT_CONFIG. If a node is lost, all are
started again, on the nodes that Ray then has, and the run resumes.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from maskwright.cluster.jobs import RENDEZVOUS_PORT
from maskwright.errors import InputError, RunError

_CONFIG = "MASKWRIGHT_CONFIG"


def run_on_nodes(config: str, nodes: int, gpus: int, restarts: int) -> None:
    """Train on `nodes` nodes at once; a `RunError` after as many restarts."""
    try:
        import ray
    except ImportError as error:
        raise InputError("launching on Ray needs the package `ray`: pip install 'maskwright[cluster]'") from error
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = {"CPU": 1.0, "GPU": float(gpus)} if gpus else {"CPU": 1.0}
    for attempt in range(restarts + 1):
        group = placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
        ray.get(group.ready())
        places = [
            PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=rank)
            for rank in range(nodes)
        ]
        options: dict[str, Any] = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 0}
        address = ray.get(ray.remote(_find_address).options(**options, scheduling_strategy=places[0]).remote())
        start = ray.remote(_run_torchrun)
        tasks = [
            start.options(**options, scheduling_strategy=place).remote(config, rank, nodes, gpus, address)
            for rank, place in enumerate(places)
        ]
        try:
            codes = ray.get(tasks)
        except ray.exceptions.RayError as error:
            codes = [f"a node was lost ({type(error).__name__})"]
            for task in tasks:
                ray.cancel(task, force=True)
        finally:
            remove_placement_group(group)
        if all(code == 0 for code in codes):
            return
        sys.stderr.write(f"attempt {attempt + 1} of {restarts + 1} ended: {codes}\n")
    raise RunError(
        f"the run did not finish in {restarts + 1} attempts; what it saved stays, and another job resumes it"
    )


def _find_address() -> str:
    return socket.gethostbyname(socket.gethostname())


def _run_torchrun(config: str, rank: int, nodes: int, gpus: int, address: str) -> int:
    """Runs on a node: its exit code, 0 if the run is finished."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(config, encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--node-rank", str(rank)]
        processes = ["--nproc-per-node", str(max(1, gpus)), "-m", "maskwright"]
        for number, command in enumerate((["doctor", "--nodes"], ["train"])):
            meeting = ["--master-addr", address, "--master-port", str(RENDEZVOUS_PORT + 1 - number)]
            words = [*torchrun, *meeting, *processes, *command, str(file)]
            code = subprocess.run(words, check=False).returncode  # noqa: S603 (our own)
            if code:
                return code
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--restarts", type=int, required=True)
    options = parser.parse_args()
    import ray

    ray.init(address="auto")
    run_on_nodes(os.environ[_CONFIG], options.nodes, options.gpus, options.restarts)


if __name__ == "__main__":
    main()
