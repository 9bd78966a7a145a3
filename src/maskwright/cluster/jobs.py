"""A training run as a job of Slurm, Ray, Kubernetes (Kubeflow) or SkyPilot: the text of the file that is submitted.

Each job carries its whole configuration. On every machine torchrun first runs `doctor --nodes`, then `train`, which
resumes what an earlier start of the job has saved.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from maskwright.storage import dump_yaml
from maskwright.version import __version__

GRACE_S = 120
"""How long before its end a job is asked to save; a run takes at most 30 s of it."""
RENDEZVOUS_PORT = 29500
_LABEL_LENGTH = 50
"""Of 63, since Kubernetes adds to names."""
_MARK = "END_OF_CONFIGURATION"


@dataclass(frozen=True)
class Job:
    """What the files of all targets are made of."""

    name: str
    config: str
    """The run's configuration, as YAML."""
    nodes: int = 1
    gpus: int = 8
    """For each node; 0: one process on the CPU."""
    min_nodes: int | None = None
    """The job goes on with as few, if some are lost; None: it waits for all."""
    restarts: int = 3
    hours: float = 24.0
    setup: str = ""
    """Commands that every node runs first."""
    environment: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    account: str | None = None
    image: str | None = None
    namespace: str | None = None
    runtime: str = "torch-distributed"
    volume: str | None = None
    accelerator: str | None = None
    address: str | None = None

    @property
    def processes(self) -> int:
        """For each node."""
        return max(1, self.gpus)

    @property
    def label(self) -> str:
        """The name as Kubernetes and SkyPilot allow it: letters, digits and hyphens, of which a letter comes first."""
        words = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        name = words if words[:1].isalpha() else f"maskwright-{words}"
        return name[:_LABEL_LENGTH].strip("-")


def _write_config(job: Job) -> str:
    return "\n".join(
        [
            'config="$(mktemp -d)/config.yaml"',
            f"cat > \"$config\" <<'{_MARK}'",
            job.config.rstrip("\n"),
            _MARK,
        ]
    )


def _exports(job: Job) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in job.environment.items()]


def _run_on_node(job: Job, meeting: str, checking: str) -> list[str]:
    """The commands of one node; torchrun's words say where the nodes meet, for the check at another port."""
    processes = f"--nproc-per-node {job.processes}"
    return [
        f'torchrun {checking} {processes} -m maskwright doctor --nodes "$config"',
        f'exec torchrun {meeting} {processes} --max-restarts {job.restarts} -m maskwright train "$config"',
    ]


def build_slurm(job: Job) -> str:
    """An sbatch file. Before its end, or when it is preempted, the run saves and the job is queued again."""
    header = {
        "job-name": job.name,
        "nodes": str(job.nodes),
        "ntasks-per-node": "1",
        "gpus-per-node": str(job.gpus) if job.gpus else None,
        "exclusive": "" if job.gpus else None,
        "time": _format_hours(job.hours),
        "partition": job.partition,
        "account": job.account,
        "signal": f"B:USR1@{GRACE_S}",
        "requeue": "",
        "open-mode": "append",
        "output": f"{job.name}-%j.log",
    }
    size = str(job.nodes) if job.min_nodes is None else f"{job.min_nodes}:{job.nodes}"
    meeting = f'--nnodes {size} --rdzv-backend c10d --rdzv-conf "is_host=$is_host" --rdzv-id "$meeting"'
    node = [
        "set -euo pipefail",
        'config="$(mktemp -d)/config.yaml"',
        'printf "%s\\n" "$MASKWRIGHT_CONFIG" > "$config"',
        'is_host=$([ "$SLURM_NODEID" = 0 ] && echo 1 || echo 0)',
        "# With one store for all attempts torchrun 2.13 lets no node join a run.",
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        *_run_on_node(
            job,
            f'{meeting} --rdzv-endpoint "$first_node:$port"',
            f'{meeting}-check --rdzv-endpoint "$first_node:$((port + 1))"',
        ),
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}{'=' + value if value else ''}" for name, value in header.items() if value is not None),
        "",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        *_exports(job),
        *([job.setup] if job.setup else []),
        f"read -r -d '' MASKWRIGHT_CONFIG <<'{_MARK}' || true",
        job.config.rstrip("\n"),
        _MARK,
        'first_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "port=$((20000 + SLURM_JOB_ID % 20000))",
        'meeting="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        "export MASKWRIGHT_CONFIG first_node port meeting",
        "",
        "# What every node runs.",
        "read -r -d '' node <<'END_OF_NODE' || true",
        *node,
        "END_OF_NODE",
        "",
        "# Before the time limit Slurm asks this script alone, by USR1: it passes that on, waits until the run has",
        "# saved, and requeues the job. TERM is scancel, which ends it, or a preemption; then Slurm requeues it.",
        "asked=0",
        'stop() { asked=1; scancel --signal=TERM "$SLURM_JOB_ID" || true; }',
        "trap stop USR1",
        "trap : TERM",
        f'srun --kill-on-bad-exit={0 if job.min_nodes else 1} bash -c "$node" &',
        "step=$!",
        "code=0",
        'wait "$step" || code=$?',
        'while kill -0 "$step" 2>/dev/null; do code=0; wait "$step" || code=$?; done',
        "# A preemption with a grace time asks the steps alone; a job that they end then is not requeued by Slurm.",
        'if scontrol show job "$SLURM_JOB_ID" | grep -q "PreemptTime=[0-9]"; then asked=1; fi',
        'if [ "$asked" = 1 ] && [ "$code" != 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _format_hours(hours: float) -> str:
    minutes = round(hours * 60)
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def build_k8s(job: Job) -> str:
    """A TrainJob of Kubeflow Trainer 2.2 or newer, whose runtime tells torchrun by PET_ variables where nodes meet."""
    # Kubernetes puts variables in place of $(NAME) in a command, and one $ in place of two.
    job = replace(job, config=job.config.replace("$", "$$"), setup=job.setup.replace("$", "$$"))
    script = "\n".join(
        [
            "set -euo pipefail",
            *([job.setup] if job.setup else []),
            _write_config(job),
            *_run_on_node(job, '--master-port "$PET_MASTER_PORT"', '--master-port "$((PET_MASTER_PORT + 1))"'),
        ]
    )
    trainer: dict[str, Any] = {
        "image": job.image,
        "numNodes": job.nodes,
        "numProcPerNode": job.processes,
        "command": ["bash", "-c", script],
    }
    if job.gpus:
        amounts = {"nvidia.com/gpu": job.gpus}
        trainer["resourcesPerNode"] = {"requests": amounts, "limits": dict(amounts)}
    if job.environment:
        trainer["env"] = [{"name": name, "value": value} for name, value in job.environment.items()]
    spec: dict[str, Any] = {"runtimeRef": {"name": job.runtime}, "trainer": trainer}
    if job.volume:
        name, _, path = job.volume.partition(":")
        pod = {
            "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": name}}],
            "containers": [{"name": "node", "volumeMounts": [{"name": "runs", "mountPath": path}]}],
        }
        jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
        patch = {"template": {"spec": {"replicatedJobs": jobs}}}
        spec["runtimePatches"] = [{"manager": "maskwright", "trainingRuntimeSpec": patch}]
    metadata = {"name": job.label} | ({"namespace": job.namespace} if job.namespace else {})
    return dump_yaml(
        {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata, "spec": spec}
    )


def build_skypilot(job: Job) -> str:
    """A task of SkyPilot; as a managed job it is started again elsewhere when its machines are taken away."""
    meeting = (
        '--nnodes "$SKYPILOT_NUM_NODES" --node-rank "$SKYPILOT_NODE_RANK"'
        ' --master-addr "$(echo "$SKYPILOT_NODE_IPS" | head -n 1)" --master-port'
    )
    values: dict[str, Any] = {"name": job.label, "num_nodes": job.nodes}
    resources: dict[str, Any] = {"use_spot": True}
    if job.accelerator:
        resources["accelerators"] = f"{job.accelerator}:{job.processes}"
    if job.image:
        resources["image_id"] = f"docker:{job.image}"
    values["resources"] = resources
    if job.environment:
        values["envs"] = dict(job.environment)
    if job.volume:
        name, _, path = job.volume.partition(":")
        values["file_mounts"] = {path: {"name": name, "mode": "MOUNT"}}
    values["setup"] = job.setup or f"pip install maskwright=={__version__}"
    commands = _run_on_node(job, f"{meeting} {RENDEZVOUS_PORT}", f"{meeting} {RENDEZVOUS_PORT + 1}")
    values["run"] = "\n".join(["set -euo pipefail", _write_config(job), *commands])
    return dump_yaml(values)


def build_ray(job: Job) -> str:
    """A script that submits a Ray job, which starts torchrun on as many nodes of the cluster."""
    words = ["python", "-m", "maskwright.cluster.on_ray", "--nodes", str(job.nodes), "--gpus", str(job.gpus)]
    words += ["--restarts", str(job.restarts)]
    runtime = {"env_vars": {**job.environment, "MASKWRIGHT_CONFIG": job.config}}
    lines = [
        "#!/bin/bash",
        "set -euo pipefail",
        *([job.setup] if job.setup else []),
        "runtime=$(mktemp --suffix=.yaml)",
        f"cat > \"$runtime\" <<'{_MARK}'",
        dump_yaml(runtime).rstrip("\n"),
        _MARK,
        f'ray job submit --address {shlex.quote(job.address or "auto")} --submission-id "{job.label}-$(date +%s)"'
        f' --runtime-env "$runtime" -- {shlex.join(words)}',
    ]
    return "\n".join(lines) + "\n"
