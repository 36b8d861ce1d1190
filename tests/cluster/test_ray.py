"""Sweeps on a real Ray of two nodes: what is lost with a node continues elsewhere, and nothing else does.

A node is Ray's own processes on this machine, with a core for itself.
"""

import hashlib
import os
import re
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tiny
from fake_runs import read_json

pytestmark = pytest.mark.cluster
RAY = ("train", "-m", "hydra/launcher=ray")
SECONDS = 240  # that a test waits at most
MEMORY = 80 * 2**20  # bytes of a node's object store, the least that Ray takes
SIX = ("encoding=rope,alibi", "seed=0,1,2")
LONG = ("train.tokens=128000", "train.checkpoint_seconds=0.3")  # 1000 updates, some seconds
FEW_MEASUREMENTS = ("eval.protocols=[fixed-target]", "eval.lengths=[1x]", "train.log_every=100")


@pytest.fixture(scope="module")
def nodes(shared_cache):
    """A cluster whose first node has one core."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("POSENC_CACHE", str(shared_cache))
        options = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": MEMORY}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=options)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def two_nodes(nodes):
    if not nodes.worker_nodes:
        nodes.add_node(num_cpus=1, object_store_memory=MEMORY)
    return nodes


@pytest.fixture
def overrides(corpus):
    return [*tiny.TINY, *FEW_MEASUREMENTS, f"data.paths={corpus}"]


@pytest.fixture
def on_ray(two_nodes, overrides, working_folder):
    """Return a function that starts a sweep on the cluster."""
    address = f"hydra.launcher.address={two_nodes.address}"
    return lambda *more: tiny.start(*RAY, address, *overrides, *more, cwd=working_folder)


def wait_until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def states(runs):
    """Return the status of each run directory, by its name; of one that is just begun, nothing."""
    return {path.parent.name: read_json(path)["status"] for path in runs.glob("default/*/status.json")}


def has_checkpoint(runs, name):
    return bool(list((runs / "default" / name).glob("checkpoints/step-*/manifest.json")))


def weights(runs):
    """Return the checksum of the last weights of each run."""
    checksums = {}
    for run in (runs / "default").iterdir():
        last = max((run / "checkpoints").glob("step-*"))
        checksums[run.name] = hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()
    return checksums


def jobs():
    """Return the processes that run a job for a worker of Ray."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        if "hydra.mode=RUN" in arguments and "hydra/launcher=ray" in arguments:
            processes.append(process)
    return processes


@contextmanager
def with_a_job_in_training(on_ray, runs):
    """Start one long run; yield the sweep and the process of its job once that has a checkpoint."""
    sweep = on_ray(*LONG, "encoding=rope", "seed=0")
    try:
        wait_until(lambda: any(has_checkpoint(runs, name) for name in states(runs)))
        (job,) = jobs()
        yield sweep, job
    finally:
        sweep.kill()


def test_what_a_lost_node_ran_ends_with_the_weights_of_an_undisturbed_sweep(
    two_nodes, on_ray, overrides, working_folder
):
    runs = working_folder / "runs"
    sweep = on_ray(*SIX, *LONG)

    def two_in_training_and_one_finished():
        by_name = states(runs)
        training = [name for name, state in by_name.items() if state == "running"]
        return "finished" in by_name.values() and sum(has_checkpoint(runs, name) for name in training) == 2

    wait_until(two_in_training_and_one_finished)
    finished_before = [name for name, state in states(runs).items() if state == "finished"]
    weights_before = weights(runs)
    (node,) = two_nodes.worker_nodes
    two_nodes.remove_node(node, allow_graceful=False)
    result = tiny.finished(sweep, SECONDS)
    assert result.code == 0, result.err

    begun = re.findall(r"\[(\d)/6\] .*: begins", result.err)
    (lost,) = {number for number in begun if begun.count(number) > 1}
    assert sorted([*begun]) == sorted([*"123456", lost])
    assert f"[{lost}/6]" in re.search(r"(.*): its node or its worker is lost", result.err)[1]
    assert re.search(rf"\[{lost}/6\] .*: continuing at step [1-9]", result.err)
    assert all(weights(runs)[name] == weights_before[name] for name in finished_before)

    undisturbed = tiny.spawn(
        "train", "-m", *overrides, *SIX, *LONG, "runs_dir=undisturbed", cwd=working_folder
    )
    assert undisturbed.code == 0, undisturbed.err
    assert weights(runs) == weights(working_folder / "undisturbed")
    assert result.out.splitlines()[2:] == undisturbed.out.splitlines()[2:]


def test_a_job_dies_with_its_worker_and_is_started_again(on_ray, working_folder):
    runs = working_folder / "runs"
    with with_a_job_in_training(on_ray, runs) as (sweep, job):
        os.kill(job.ppid(), signal.SIGKILL)
        wait_until(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE)
        result = tiny.finished(sweep, SECONDS)
    assert result.code == 0, result.err
    assert "its node or its worker is lost, so it is started again" in result.err
    assert re.search(r"continuing at step [1-9]", result.err)
    assert set(states(runs).values()) == {"finished"}


def test_a_job_that_is_killed_is_not_started_again(on_ray, working_folder):
    with with_a_job_in_training(on_ray, working_folder / "runs") as (sweep, job):
        job.kill()
        result = tiny.finished(sweep, SECONDS)
    assert result.code == 1
    assert "killed by SIGKILL" in result.err
    assert result.err.count(": begins") == 1


def test_a_run_that_diverges_is_not_started_again(on_ray):
    result = tiny.finished(on_ray("encoding=rope", "seed=0", "train.lr=1e30"), SECONDS)
    assert result.code == 1
    assert "1 jobs: 1 diverged" in result.err
    assert result.err.count(": begins") == 1


def test_ctrl_c_saves_what_runs_and_the_same_command_continues(on_ray, working_folder):
    runs = working_folder / "runs"
    three = (*LONG, "encoding=rope", "seed=0,1,2")
    sweep = on_ray(*three)
    wait_until(lambda: sum(has_checkpoint(runs, name) for name in states(runs)) == 2)
    sweep.send_signal(signal.SIGINT)
    result = tiny.finished(sweep, SECONDS)
    assert result.code == 130, result.err
    assert "3 jobs: 2 interrupted, 1 not started" in result.err
    assert set(states(runs).values()) == {"interrupted"}
    again = tiny.finished(on_ray(*three), SECONDS)
    assert again.code == 0, again.err
    assert len(re.findall(r"continuing at step [1-9]", again.err)) == 2


def test_jobs_stop_when_the_command_is_killed(on_ray, working_folder):
    with with_a_job_in_training(on_ray, working_folder / "runs") as (sweep, job):
        sweep.kill()
        wait_until(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE)


def test_fail_fast_stops_the_others(on_ray):
    result = tiny.finished(on_ray(*LONG, "train.lr=1e30,1e-3", "sweep.fail_fast=true"), SECONDS)
    assert result.code == 1, result.err
    assert "2 jobs: 1 diverged, 1 " in result.err
    assert result.err.count(": begins") <= 2


def test_a_run_comes_back_from_a_node_with_a_folder_of_its_own(on_ray, working_folder, shared_cache):
    own = ("encoding=rope,alibi", "seed=0", "hydra.launcher.folders=own")
    result = tiny.finished(on_ray(*own), SECONDS)
    assert result.code == 0, result.err
    runs = working_folder / "runs"
    assert set(states(runs).values()) == {"finished"}
    assert len(weights(runs)) == 2
    assert not list((shared_cache / "ray" / "default").iterdir())  # nothing is left on the node
    again = tiny.finished(on_ray(*own), SECONDS)
    assert again.err.count("already finished") == 2


def test_why_a_run_failed_comes_back_too(on_ray, working_folder):
    result = tiny.finished(on_ray("encoding=rope", "train.lr=1e30", "hydra.launcher.folders=own"), SECONDS)
    assert "diverged, non-finite" in result.err, result.err
    (run,) = (working_folder / "runs" / "default").glob("[!.]*")
    assert sorted(path.name for path in Path(run).glob("[!.]*")) == ["config.yaml", "log.txt", "status.json"]
