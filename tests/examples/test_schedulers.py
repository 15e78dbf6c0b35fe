"""The scripts for Slurm and Kubernetes, as far as they can be tried without either."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SBATCH = EXAMPLES / "slurm/train.sbatch"

SAYS = '#!/bin/bash\necho "$(basename "$0") $*" >>"$SAID"\n'
STUBS = {
    "srun": SAYS,
    "hostname": 'echo "10.0.0.1 fe80::1"',
    "python": """[ "$(grep -c '^srun ' "$SAID")" -ge 2 ] || exit 1
exit "${JOINED:-0}\"""",
    "scontrol": SAYS + 'if [ "$1" = show ]; then printf "n1\\nn2\\n"; fi',
    "timeout": 'shift; exec "$@"',
    # Says "up" once it can be signalled, and ends as a run does that is asked to.
    "eventrain": SAYS
    + """if [ "$1" = plan ]; then exit "${PLAN:-0}"; fi
trap 'echo "eventrain: got TERM" >>"$SAID"; exit 130' TERM
echo up >"$UP"
if [ -n "${ENDS:-}" ]; then exit "$ENDS"; fi
while true; do read -r -t 1 <>"$NEVER" || true; done
""",
}


@pytest.fixture
def job(tmp_path):
    """Return a way to start the script in a world of stubs, and the file of what these were asked."""
    if os.name != "posix" or shutil.which("bash") is None:
        pytest.skip("needs bash")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STUBS.items():
        stub = folder / name
        stub.write_text(body if body.startswith("#!") else f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    said, up, never = tmp_path / "said", tmp_path / "up", tmp_path / "never"
    os.mkfifo(up)
    os.mkfifo(never)
    started: list[subprocess.Popen[str]] = []

    def start(run_dir: Path, **more: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SAID": str(said),
            "UP": str(up),
            "NEVER": str(never),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            **more,
        }
        process = subprocess.Popen(
            ["bash", SBATCH, "my.toml", run_dir],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start, said, up
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stderr.close()


def wait_for(up: Path) -> None:
    """Wait until the stub of eventrain runs."""
    descriptor = os.open(up, os.O_RDWR)  # does not wait for the other end
    try:
        assert select.select([descriptor], [], [], 30)[0], "no run was started"
    finally:
        os.close(descriptor)


def asked(said: Path, name: str) -> list[str]:
    """Return what the command `name` was called with."""
    return [line for line in said.read_text().splitlines() if line.startswith(f"{name} ")]


def test_a_new_run_is_started_on_a_ray_cluster_of_the_jobs_own(job, tmp_path):
    """Head and workers are started on their nodes, and the run gets the head's address; its exit code is the job's."""
    start, said, up = job
    process = start(tmp_path / "run", ENDS="3")
    wait_for(up)
    assert process.wait(30) == 3
    head, workers = asked(said, "srun")
    if "--head" not in head:  # they start at the same time
        head, workers = workers, head
    assert "--nodelist=n1 ray start --head --node-ip-address=10.0.0.1 --port=6379" in head
    assert "--exclude=n1" in workers
    assert "ray start --address='10.0.0.1:6379'" in workers
    assert asked(said, "eventrain") == [
        "eventrain plan my.toml",
        f"eventrain run my.toml --run-dir {tmp_path / 'run'} --set cluster.address=10.0.0.1:6379",
    ]
    assert asked(said, "scontrol") == ["scontrol show hostnames n[1-2]"]


def test_a_signal_ends_the_run_cleanly_and_queues_the_job_again(job, tmp_path):
    """SIGTERM to the shell reaches the run, whose end is waited for; then the job is requeued."""
    start, said, up = job
    process = start(tmp_path / "run")
    wait_for(up)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert "eventrain: got TERM" in said.read_text()
    assert asked(said, "scontrol")[-1] == "scontrol requeue 7"
    assert "to be queued again" in process.stderr.read()


def test_a_job_that_starts_again_goes_on_with_its_run(job, tmp_path):
    """Where the folder has a log, the run in it is resumed, at the address of the new cluster."""
    start, said, up = job
    events = tmp_path / "run/events"
    events.mkdir(parents=True)
    (events / "000001.jsonl.zst").touch()
    process = start(tmp_path / "run", ENDS="0")
    wait_for(up)
    assert process.wait(30) == 0
    assert asked(said, "eventrain")[-1] == (
        f"eventrain run --resume {tmp_path / 'run'} --set cluster.address=10.0.0.1:6379"
    )


def test_what_cannot_be_placed_starts_nothing(job, tmp_path):
    """A plan that is refused ends the job before there is a Ray cluster."""
    start, said, _ = job
    assert start(tmp_path / "run", PLAN="2").wait(30) == 2
    assert asked(said, "srun") == []


def test_nodes_that_do_not_join_end_the_job(job, tmp_path):
    """After START_S the job fails with one line, and no run was started."""
    start, said, _ = job
    process = start(tmp_path / "run", JOINED="1", START_S="0")
    assert process.wait(30) == 1
    assert process.stderr.read() == (
        "the 2 nodes of the Ray cluster at 10.0.0.1:6379 were not there within 0 s\n"
    )
    assert asked(said, "eventrain") == ["eventrain plan my.toml"]


def test_the_script_is_sound():
    """Neither bash nor shellcheck, which comes with the development tools, finds anything."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    subprocess.run(["bash", "-n", SBATCH], check=True, timeout=30)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert checker is not None
    done = subprocess.run([checker, SBATCH], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == ""


RAY_JOB = {
    "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint", "entrypointNumCpus",
    "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata", "rayClusterSpec", "runtimeEnvYAML",
    "shutdownAfterJobFinishes", "submissionMode", "submitterConfig", "submitterPodTemplate", "suspend",
    "ttlSecondsAfterFinished",
}  # fmt: skip
RAY_CLUSTER = {
    "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
    "headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs",
}  # fmt: skip
HEAD = {"enableIngress", "headService", "rayStartParams", "serviceType", "template"}
WORKERS = {
    "groupName", "idleTimeoutSeconds", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams", "replicas",
    "scaleStrategy", "suspend", "template",
}  # fmt: skip
"""Fields of RayJobSpec, RayClusterSpec, HeadGroupSpec and WorkerGroupSpec, from KubeRay's docs/reference/api.md."""


def test_the_ray_job_has_the_fields_of_its_kind():
    """Every field is one of ray.io/v1, GPUs are asked for, and every mount has its volume."""
    yaml = pytest.importorskip("yaml")
    (job,) = yaml.safe_load_all((EXAMPLES / "kubernetes/rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for part, fields in (spec, RAY_JOB), (cluster, RAY_CLUSTER), (cluster["headGroupSpec"], HEAD), (workers, WORKERS):
        assert set(part) <= fields
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (cluster["headGroupSpec"], workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        for container in pod["containers"]:
            assert container["resources"]["requests"] == container["resources"]["limits"]
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["volumes"]}
    (container,) = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_its_pods_are_pods_of_kubernetes():
    """The pods of head and workers are valid against the newest schema of Kubernetes that is at hand."""
    yaml, validate = pytest.importorskip("yaml"), pytest.importorskip("kubernetes_validate")
    cluster = yaml.safe_load((EXAMPLES / "kubernetes/rayjob.yaml").read_text())["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": group["template"]["spec"]}
        validate.validate(pod, validate.latest_version(), strict=True)


def test_the_ray_job_goes_on_with_its_run(tmp_path):
    """Its command starts a run, and where the folder has a log resumes it."""
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "kubernetes/rayjob.yaml").read_text())
    stub = tmp_path / "eventrain"
    stub.write_text('#!/bin/sh\necho "$@"\n')
    stub.chmod(0o755)
    command = job["spec"]["entrypoint"].replace("/shared", str(tmp_path))

    def said() -> str:
        paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(command, shell=True, env=paths, capture_output=True, text=True, check=True).stdout

    run = tmp_path / "runs/first-try"
    assert said() == f"run /config/config.toml --run-dir {run}\n"
    (run / "events").mkdir(parents=True)
    (run / "events/000001.jsonl.zst").touch()
    assert said() == f"run --resume {run}\n"
