"""A run on the nodes of a real Ray cluster, all on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.errors import RunError

ray = pytest.importorskip("ray", reason="runs on Ray need the extra `cluster`")


@pytest.fixture
def ray_cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_a_run_on_two_nodes_is_finished_as_one(ray_cluster: Any, tiny_values: dict[str, Any], tmp_path: Path) -> None:
    from maskwright.cluster.on_ray import run_on_nodes

    tiny_values["run"] = {**tiny_values.get("run", {}), "name": "ray", "out": str(tmp_path)}
    run_on_nodes(yaml.safe_dump(tiny_values), nodes=2, gpus=0, restarts=0)
    figures = json.loads((tmp_path / "ray" / "final.json").read_text())
    assert figures["loss"] > 0
    tiny_values["optimizer"] = {"learning_rate": -1}
    with pytest.raises(RunError, match="did not finish in 1 attempts"):
        run_on_nodes(yaml.safe_dump(tiny_values), nodes=2, gpus=0, restarts=0)
