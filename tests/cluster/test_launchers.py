"""Sweeps through Slurm; the real one is scripts/checks/cluster.sh."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tiny
from hydra.core.config_store import ConfigStore

from posenc.running import slurm


def put(working_folder, program, script):
    (working_folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (working_folder / program).chmod(0o755)


def test_without_the_plug_in_it_says_what_to_install(posenc, working_folder, monkeypatch):
    store = ConfigStore.instance()
    there = {n: v for n, v in store.repo["hydra"]["launcher"].items() if n in ("basic.yaml", "joblib.yaml")}
    monkeypatch.setitem(store.repo["hydra"], "launcher", there)
    result = posenc("train", "-m", "hydra/launcher=slurm", "seed=0,1")
    assert (
        result.code == 2
        and "pip install 'posenc[slurm]'" in result.err
        and not list(working_folder.iterdir())
    )


@pytest.mark.parametrize(
    ("programs", "name", "code", "said"),
    [
        ({"sbatch": "", "sinfo": "echo no controller >&2; exit 1"}, "submitit_slurm", 2, "no controller"),
        ({"sbatch": "echo no >&2; exit 1", "sinfo": "", "srun": ""}, "slurm", 1, "Slurm refuses the jobs: "),
        ({}, "submitit_local", 2, "allowed: basic, slurm"),
    ],
)
def test_where_slurm_does_not_answer_nothing_is_left(
    train, working_folder, monkeypatch, programs, name, code, said
):
    pytest.importorskip("submitit")
    for program, script in programs.items():
        put(working_folder, program, script)
    monkeypatch.setenv("PATH", str(working_folder))
    result = train("-m", f"hydra/launcher={name}", "seed=0,1")
    assert result.code == code and said in result.err and "Traceback" not in result.err, result.err
    assert len(result.err.splitlines()) < 6 and not (working_folder / "runs" / ".sweeps").exists()


def test_a_job_without_a_result_counts_as_failed(working_folder, capsys, monkeypatch):
    pytest.importorskip("submitit")
    from submitit.local.local import LocalJob

    monkeypatch.setattr(slurm, "SEEN_WITHIN", 0.0)
    job = LocalJob(working_folder, "7")
    assert slurm._exit_code(job) == 1
    assert "job 7 of submitit left no result: it was killed" in capsys.readouterr().err
    job.paths.result_pickle.write_bytes(b"half a file")
    assert slurm._exit_code(job) == 1 and "left no result" in capsys.readouterr().err


def test_the_queue_tells_whether_jobs_are_over(working_folder, monkeypatch):
    monkeypatch.setenv("PATH", f"{working_folder}{os.pathsep}{os.environ['PATH']}")
    for answer, waits in (
        ("echo PENDING", True),
        ("exit 0", False),
        ("echo Invalid job id specified >&2; exit 1", False),  # forgotten is over
        ("exit 1", True),  # the controller does not answer: nothing is known
    ):
        put(working_folder, "squeue", answer)
        assert slurm._in_queue([SimpleNamespace(job_id="7_0"), SimpleNamespace(job_id="7_1")]) == waits


REQUEUED = """
import os, signal, sys
from posenc.running.signals import StopFlag
from posenc.running.slurm import preemptible

def requeue(number, frame):
    print("requeued", flush=True)
    sys.exit(255)

signal.signal(signal.SIGUSR2, requeue)

def run():
    with StopFlag() as stop:
        stop.guard()
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
        while not stop.requested():
            pass
        print("saved", flush=True)
        return stop.exit_code

print(preemptible(run))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "state", "said", "code"),
    [
        ("SIGUSR2", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "COMPLETING", "saved", 143),
    ],
)
def test_what_is_stopped_is_saved_then_put_back_unless_slurm_has_decided(
    working_folder, sent, state, said, code
):
    pytest.importorskip("submitit")
    put(working_folder, "scontrol", f"echo JobId=7 JobState={state} Requeue=1")
    done = tiny.python("-c", REQUEUED, sent, PATH=f"{working_folder}{os.pathsep}{os.environ['PATH']}")
    assert (done.out.split(), done.code) == (said.split(), code), done.err


@pytest.mark.cluster
@pytest.mark.parametrize("part", ["sweep", "requeue", "preempt", "killed"])
def test_on_a_real_slurm(part):
    pytest.importorskip("submitit")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    script = ["bash", str(tiny.ROOT / "scripts/checks/cluster.sh"), "--venv", sys.prefix, "--only", part]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
