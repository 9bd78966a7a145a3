"""Job files: what a shell, YAML and torchrun make of them, with stand-ins for the programs of a cluster."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.cluster.jobs import Job
from maskwright.cluster.launch import launch
from maskwright.config import build_config, open_config
from maskwright.errors import InputError

SETTINGS = ["data.train=builtin:python", "run.name=big", "run.out=/runs"]
VOLUME = {"volume": "claim:/runs"}


def check_shell(script: str) -> None:
    found = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr


def write(target: Any, tmp_path: Path, **options: Any) -> str:
    return launch(target, None, SETTINGS, out=tmp_path / "job", **options).read_text(encoding="utf-8")


def read_embedded_config(script: str) -> Any:
    start = script.index("<<'END_OF_CONFIGURATION'")
    text = script[script.index("\n", start) + 1 : script.index("\nEND_OF_CONFIGURATION", start)]
    return yaml.safe_load(text)


def put_program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The environment of a batch script, with programs that write what they were called with."""
    (tmp_path / "state").write_text("JobId=41 PreemptTime=None")
    programs, said = tmp_path / "programs", tmp_path / "said"
    answers = f'show\\ job*) cat {tmp_path}/state ;; show*) echo node7 ;; *) echo "scontrol $*" >> {said} ;;'
    put_program(programs, "scontrol", f'case "$*" in {answers} esac')
    put_program(programs, "srun", f'echo "srun $1" >> {said}; shift; SLURM_NODEID=0 exec "$@"')
    put_program(programs, "scancel", f'echo "scancel $*" >> {said}; kill -TERM $(cat {tmp_path}/torchrun.pid)')
    put_program(programs, "torchrun", f'echo "torchrun $*" >> {said}; cp "${{@: -1}}" {tmp_path}/given.yaml')
    path = f"{programs}:{os.environ['PATH']}"
    return {
        "PATH": path,
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }


def test_slurm_checks_the_machines_then_trains_with_the_same_configuration(
    tmp_path: Path, slurm: dict[str, str]
) -> None:
    script = write("slurm", tmp_path, nodes=2, gpus=4, setup=":", partition="gpu", hours=1.5)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n" in script
    assert "#SBATCH --time=1:30:00\n#SBATCH --partition=gpu\n" in script
    assert "#SBATCH --requeue\n" in script
    subprocess.run(["bash", "-c", script], env=slurm, check=True)
    calls = (tmp_path / "said").read_text().splitlines()
    assert calls[0] == "srun --kill-on-bad-exit=1"
    checking, training = map(shlex.split, calls[1:])
    assert checking[1:3] == training[1:3] == ["--nnodes", "2"]
    assert checking[-4:-1] == ["maskwright", "doctor", "--nodes"]
    assert training[-3:-1] == ["maskwright", "train"]
    assert "is_host=1" in training
    ends = [words[words.index("--rdzv-endpoint") + 1] for words in (checking, training)]
    assert ends == ["node7:20042", "node7:20041"]
    expected = open_config(None, SETTINGS)
    assert build_config(yaml.safe_load((tmp_path / "given.yaml").read_text())) == expected


@pytest.mark.parametrize(
    ("to_script", "preempted", "is_requeued"),
    [
        pytest.param(signal.SIGUSR1, "None", True, id="time-is-up"),
        pytest.param(signal.SIGTERM, "None", False, id="cancelled"),
        pytest.param(None, "2030-01-01T00:00:00", True, id="preempted"),
    ],
)
def test_slurm_queues_a_job_again_that_was_not_cancelled(
    tmp_path: Path, slurm: dict[str, str], to_script: signal.Signals | None, preempted: str, is_requeued: bool
) -> None:
    wait = (
        f'if [[ "$*" == *train* ]]; then echo $$ > {tmp_path}/torchrun.pid; trap "exit 1" TERM;'
        " while true; do sleep 0.05; done; fi"
    )
    put_program(tmp_path / "programs", "torchrun", wait)
    (tmp_path / "state").write_text(f"JobId=41\n   PreemptEligibleTime=2029-01-01T00:00:00 PreemptTime={preempted}\n")
    script = write("slurm", tmp_path, setup=":")
    assert "#SBATCH --signal=B:USR1@120\n" in script
    process = subprocess.Popen(["bash", "-c", script], env=slurm)
    try:
        limit = time.monotonic() + 60
        while not (tmp_path / "torchrun.pid").is_file() or not (tmp_path / "torchrun.pid").read_text():
            assert time.monotonic() < limit
            time.sleep(0.02)
        if to_script is not None:
            process.send_signal(to_script)
        if to_script != signal.SIGUSR1:  # Slurm itself signals the steps
            os.kill(int((tmp_path / "torchrun.pid").read_text()), signal.SIGTERM)
        assert process.wait(60) == 1
    finally:
        process.kill()
    calls = (tmp_path / "said").read_text().splitlines()
    assert ("scancel --signal=TERM 41" in calls) == (to_script == signal.SIGUSR1)
    assert ("scontrol requeue 41" in calls) == is_requeued


def test_a_failed_check_of_the_machines_ends_the_job(tmp_path: Path, slurm: dict[str, str]) -> None:
    put_program(tmp_path / "programs", "torchrun", f'echo "$*" >> {tmp_path}/said; exit 1')
    script = write("slurm", tmp_path, setup=":")
    assert subprocess.run(["bash", "-c", script], env=slurm, check=False).returncode == 1
    said = (tmp_path / "said").read_text()
    assert "doctor" in said
    assert "train" not in said
    assert "requeue" not in said


def test_slurm_goes_on_with_fewer_machines_if_asked(tmp_path: Path) -> None:
    script = write("slurm", tmp_path, nodes=4, min_nodes=2, environment={"NCCL_DEBUG": "INFO it"})
    check_shell(script)
    assert "--nnodes 2:4" in script
    assert "srun --kill-on-bad-exit=0" in script
    assert "export NCCL_DEBUG='INFO it'\n" in script


def test_kubernetes_gets_a_train_job(tmp_path: Path) -> None:
    options = {"image": "registry/image:1", "namespace": "team", "environment": {"A": "1"}, **VOLUME}
    job = yaml.safe_load(write("k8s", tmp_path, nodes=2, gpus=8, **options))
    assert job["kind"] == "TrainJob"
    assert job["metadata"] == {"name": "big", "namespace": "team"}
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 8, "registry/image:1")
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}
    assert trainer["env"] == [{"name": "A", "value": "1"}]
    patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]
    (nodes,) = patch["template"]["spec"]["replicatedJobs"]
    override = nodes["template"]["spec"]["template"]["spec"]
    assert override["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert override["containers"][0]["volumeMounts"][0]["mountPath"] == "/runs"
    script = trainer["command"][-1]
    check_shell(script)
    assert build_config(read_embedded_config(script)) == open_config(None, SETTINGS)


def test_kubernetes_reads_the_job_by_its_own_schema(tmp_path: Path) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="the schema is in kubeflow-trainer-api")
    job = yaml.safe_load(write("k8s", tmp_path, image="registry/image:1", environment={"A": "1"}, **VOLUME))
    read = models.TrainerV1alpha1TrainJob.from_dict(job).to_dict()
    assert {name: read[name] for name in job} == job  # it drops what it does not know


@pytest.mark.parametrize("name", ["2024 run!", "Ünï", "a" * 49 + "--b"])
def test_names_are_those_that_kubernetes_takes(name: str) -> None:
    assert re.fullmatch("[a-z]([-a-z0-9]{0,48}[a-z0-9])?", Job(name, "").label)


def test_kubernetes_changes_nothing_in_the_script(tmp_path: Path) -> None:
    job = yaml.safe_load(write("k8s", tmp_path, image="a", setup="echo $$ $(A)", environment={"A": "1"}, **VOLUME))
    assert "echo $$$$ $$(A)\n" in job["spec"]["trainer"]["command"][-1]


def test_skypilot_reads_the_task_by_its_own_schema(tmp_path: Path) -> None:
    sky = pytest.importorskip("sky", reason="the schema is in skypilot")
    write("skypilot", tmp_path, nodes=3, accelerator="H100", image="a/b:1", environment={"A": "1"}, **VOLUME)
    task = sky.Task.from_yaml(str(tmp_path / "job"))
    assert (task.num_nodes, task.envs["A"]) == (3, "1")
    (resources,) = task.resources
    assert (resources.accelerators, resources.use_spot) == ({"H100": 8}, True)


def test_skypilot_gets_a_task_on_spot_machines(tmp_path: Path) -> None:
    task = yaml.safe_load(write("skypilot", tmp_path, nodes=3, accelerator="H100", **VOLUME))
    assert task["num_nodes"] == 3
    assert task["resources"] == {"use_spot": True, "accelerators": "H100:8"}
    assert task["file_mounts"] == {"/runs": {"name": "claim", "mode": "MOUNT"}}
    check_shell(task["run"])
    check_shell(task["setup"])
    assert '--node-rank "$SKYPILOT_NODE_RANK"' in task["run"]
    assert build_config(read_embedded_config(task["run"])) == open_config(None, SETTINGS)


def test_ray_gets_a_job_with_the_configuration_in_its_environment(tmp_path: Path) -> None:
    script = write("ray", tmp_path, nodes=2, gpus=4, address="http://head:8265", environment={"A": "1"})
    check_shell(script)
    environment = read_embedded_config(script)["env_vars"]
    assert environment["A"] == "1"
    assert build_config(yaml.safe_load(environment["MASKWRIGHT_CONFIG"])) == open_config(None, SETTINGS)
    assert "--address http://head:8265" in script
    assert '--submission-id "big-$(date +%s)" ' in script
    assert "-m maskwright.cluster.on_ray --nodes 2 --gpus 4" in script


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("pbs", {}, "'pbs' is no kind of cluster; known are slurm, ray, k8s, skypilot"),
        ("slurm", {"image": "a"}, "image is an option of k8s and skypilot, not of slurm"),
        ("slurm", {"partitions": "a"}, "'partitions' is no option of a job"),
        ("slurm", {"nodes": 2, "min_nodes": 3}, "min_nodes is 3, more than nodes, 2"),
        ("slurm", {"nodes": 0}, "nodes is 0; it must be at least 1"),
        ("slurm", {"hours": 0.0}, "hours is 0"),
        ("k8s", VOLUME, "name one with --image"),
        ("k8s", {"image": "a"}, "run.out is /runs, which the job's machines lose"),
        ("k8s", {"image": "a", "volume": "claim"}, "the volume is 'claim'; expected NAME:/PATH"),
        ("skypilot", VOLUME, "name the kind of GPU with --accelerator"),
    ],
)
def test_what_cannot_work_is_refused_and_nothing_written(
    tmp_path: Path, target: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        write(target, tmp_path, **options)
    assert not (tmp_path / "job").exists()


def test_data_that_the_machines_do_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data\.train is corpus\.txt, which the job's machines do not have"):
        launch("k8s", None, [*SETTINGS, "data.train=corpus.txt"], out=tmp_path / "job", image="a", **VOLUME)
    launch("k8s", None, [*SETTINGS, "data.train=s3://bucket/corpus"], out=tmp_path / "job", image="a", **VOLUME)


def test_a_run_that_is_kept_in_a_store_needs_no_volume(tmp_path: Path) -> None:
    settings = [*SETTINGS, "run.store=s3://bucket/runs"]
    with pytest.raises(InputError, match=r"data\.train is corpus\.txt, which the job's machines do not have"):
        launch("k8s", None, [*settings, "data.train=corpus.txt"], out=tmp_path / "job", image="a")
    launch("k8s", None, [*settings, "data.train=s3://bucket/corpus"], out=tmp_path / "job", image="a")
    job = yaml.safe_load((tmp_path / "job").read_text())
    assert "runtimePatches" not in job["spec"]
    assert "store: s3://bucket/runs" in str(job["spec"]["trainer"]["command"])


def test_another_job_is_not_overwritten(tmp_path: Path) -> None:
    first = write("slurm", tmp_path, nodes=2)
    assert write("slurm", tmp_path, nodes=2) == first
    with pytest.raises(InputError, match="holds another job"):
        write("slurm", tmp_path, nodes=3)
    assert (tmp_path / "job").read_text() == first
    assert write("slurm", tmp_path, nodes=3, overwrite=True) != first


@pytest.mark.parametrize(("target", "program"), [("slurm", "sbatch"), ("ray", "ray")])
def test_a_job_is_not_written_where_it_cannot_be_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, program: str
) -> None:
    put_program(tmp_path / "programs", "bash", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    with pytest.raises(InputError, match=f"^there is no {program} here to submit the job with"):
        write(target, tmp_path, submit=True)
    assert not (tmp_path / "job").exists()


def test_submitting_calls_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    put_program(tmp_path / "programs", "sbatch", f'echo "$1" > {tmp_path}/submitted')
    write("slurm", tmp_path, submit=True)
    assert (tmp_path / "submitted").read_text().strip() == str(tmp_path / "job")


def test_the_command_writes_the_job(command: Callable[..., Any], tmp_path: Path) -> None:
    done = command(
        "launch", "slurm", "run.name=big", "--nodes", "2", "--out", str(tmp_path / "a.sbatch"), "--env", "A=1"
    )
    assert done.code == 0
    assert "--nnodes 2" in (tmp_path / "a.sbatch").read_text()
    assert command("launch", "slurm", "--env", "A").code == 2
