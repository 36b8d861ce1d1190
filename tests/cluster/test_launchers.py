"""Sweeps through Slurm; the real one is scripts/checks/cluster.sh."""

import os
import subprocess
import sys
from types import SimpleNamespace

import hydra
import pytest
import tiny
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from posenc.config.compose import initialize_hydra
from posenc.running import slurm
from posenc.running.sweep.task import SweepTask


def write_program(folder, name, script):
    """Write a shell script that stands in for a program of Slurm."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_the_plug_in_it_says_what_to_install(posenc, working_folder, monkeypatch):
    Plugins.instance()  # they bring their launchers, if nothing has asked for them yet
    groups = ConfigStore.instance().repo["hydra"]
    of_hydra = {
        name: groups["launcher"][name] for name in ("basic.yaml", "joblib.yaml") if name in groups["launcher"]
    }
    monkeypatch.setitem(groups, "launcher", of_hydra)
    result = posenc("train", "-m", "hydra/launcher=slurm", "seed=0,1")
    assert result.code == 2
    assert "pip install 'posenc[slurm]'" in result.err
    assert not list(working_folder.iterdir())


NO_CONTROLLER = {"sbatch": "", "sinfo": "echo no controller >&2; exit 1"}
REFUSED = {"sbatch": "echo no >&2; exit 1", "sinfo": "", "srun": ""}


@pytest.mark.parametrize(
    ("programs", "launcher", "code", "message"),
    [
        pytest.param(NO_CONTROLLER, "submitit_slurm", 2, "no controller", id="no controller"),
        pytest.param(REFUSED, "slurm", 1, "Slurm refuses the jobs: ", id="refused"),
        pytest.param({}, "submitit_local", 2, "allowed: basic, slurm, ray", id="no Slurm"),
    ],
)
def test_where_slurm_does_not_answer_nothing_is_left(
    train, working_folder, monkeypatch, programs, launcher, code, message
):
    pytest.importorskip("submitit")
    for program, script in programs.items():
        write_program(working_folder, program, script)
    monkeypatch.setenv("PATH", str(working_folder))
    result = train("-m", f"hydra/launcher={launcher}", "seed=0,1")
    assert result.code == code, result.err
    assert message in result.err
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) < 6
    assert not (working_folder / "runs" / ".sweeps").exists()


def test_a_job_gets_words_that_hydra_composes_without_posenc(working_folder):
    """Hydra's launcher composes them itself: it knows no files of encodings, and no options of tasks."""
    (working_folder / "mine.py").write_text(tiny.PLUGIN)
    words = ["encoding=./mine.py", "encoding.strength=2", "train.precision=auto", "hydra.launcher.nodes=1"]
    task = SweepTask("[1/1] mine", ["posenc"], working_folder, overrides=words, precision="bf16")
    with initialize_hydra(None) as search_overrides:
        written = slurm._words_of_job("train", search_overrides, task)
        config = hydra.compose("train", written)
    assert config.encoding == {"name": "mine", "strength": 2}
    assert config.plugins == ["./mine.py"]
    assert config.train.precision == "bf16"


def test_options_of_a_task_reach_the_job(working_folder):
    words = ["data=task", "data.task=mqar", "data.options.pairs=2"]
    task = SweepTask("[1/1] rope", ["posenc"], working_folder, overrides=words)
    with initialize_hydra(None) as search_overrides:
        config = hydra.compose("train", slurm._words_of_job("train", search_overrides, task))
    assert config.data.options == {"pairs": 2}


@pytest.fixture
def job(working_folder, monkeypatch):
    """A job of submitit that left nothing."""
    local = pytest.importorskip("submitit.local.local")
    monkeypatch.setattr("posenc.running.sweep.task.VISIBLE_AFTER", 0.0)
    return local.LocalJob(working_folder, "7")


def test_a_job_without_a_result_counts_as_failed(job, capsys):
    assert slurm._exit_code(job) == 1
    assert "job 7 of submitit left no result: it was killed" in capsys.readouterr().err


def test_a_job_with_half_a_result_counts_as_failed(job, capsys):
    job.paths.result_pickle.write_bytes(b"half a file")
    assert slurm._exit_code(job) == 1
    assert "left no result" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "is_waited_for"),
    [
        pytest.param("echo PENDING", True, id="pending"),
        pytest.param("exit 0", False, id="over"),
        pytest.param("echo Invalid job id specified >&2; exit 1", False, id="forgotten, so it is over"),
        pytest.param("exit 1", True, id="no answer of the controller, so nothing is known"),
    ],
)
def test_the_queue_tells_whether_jobs_are_over(working_folder, monkeypatch, answer, is_waited_for):
    write_program(working_folder, "squeue", answer)
    monkeypatch.setenv("PATH", f"{working_folder}{os.pathsep}{os.environ['PATH']}")
    jobs = [SimpleNamespace(job_id="7_0"), SimpleNamespace(job_id="7_1")]
    assert slurm._in_queue(jobs) == is_waited_for


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
    ("number", "state", "steps", "code"),
    [
        ("SIGUSR2", "RUNNING", ["saved", "requeued"], 255),
        ("SIGTERM", "RUNNING", ["saved", "requeued"], 255),
        ("SIGTERM", "COMPLETING", ["saved"], 143),
    ],
)
def test_a_stopped_job_is_saved_then_put_back_unless_slurm_has_decided(
    working_folder, number, state, steps, code
):
    pytest.importorskip("submitit")
    write_program(working_folder, "scontrol", f"echo JobId=7 JobState={state} Requeue=1")
    path = f"{working_folder}{os.pathsep}{os.environ['PATH']}"
    result = tiny.python("-c", REQUEUED, number, PATH=path)
    assert result.out.split() == steps, result.err
    assert result.code == code


@pytest.mark.cluster
@pytest.mark.parametrize("part", ["sweep", "requeue", "preempt", "killed"])
def test_on_a_real_slurm(part):
    pytest.importorskip("submitit")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    script = ["bash", str(tiny.ROOT / "scripts/checks/cluster.sh"), "--venv", sys.prefix, "--only", part]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
