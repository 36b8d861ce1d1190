"""A sweep by a launcher of Hydra's plug-ins; the real Slurm is scripts/cluster_check.sh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus

from posenc.config.compose import compose_jobs, of_the_job
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.running.slurm import _code

Posenc = Callable[..., tiny.Result]
LOCAL = ("-m", "hydra/launcher=submitit_local")


@pytest.mark.parametrize(
    ("launcher", "package"),
    [("slurm", "'posenc[slurm]'"), ("submitit_local", "'posenc[slurm]'"), ("ray", "hydra-ray-launcher")],
)
def test_without_the_plug_in_it_says_what_to_install(
    launcher: str, package: str, posenc: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ConfigStore.instance()
    there = {n: v for n, v in store.repo["hydra"]["launcher"].items() if n in ("basic.yaml", "joblib.yaml")}
    monkeypatch.setitem(store.repo["hydra"], "launcher", there)
    result = posenc("train", "-m", f"hydra/launcher={launcher}", "seed=0,1")
    assert result.code == 2 and f"pip install {package}" in result.err and not list(place.iterdir())


def test_a_launcher_needs_a_sweep() -> None:
    with pytest.raises(UserError, match="sweep") as caught:
        compose_jobs("train", parse(["hydra/launcher=joblib", "seed=0"]))
    assert caught.value.hint == "add -m"
    assert not compose_jobs("train", parse(["hydra/launcher=joblib", "seed=0", "hydra.mode=RUN"])).sweep


def test_the_jobs_of_another_launcher_are_expanded_each_once() -> None:
    pytest.importorskip("submitit")
    composed = compose_jobs("train", parse(["-m", "hydra/launcher=slurm", "+hydra.x=1", "seed=0,1,0"]))
    assert composed.launcher == "slurm"
    assert [of_the_job(job) for job in composed.jobs] == [["seed=0"], ["seed=1"]]
    assert compose_jobs("train", parse(["-m", "seed=0,1"])).launcher is None


def test_a_job_that_raised_counts_as_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _code(JobReturn(status=JobStatus.COMPLETED, _return_value=143)) == 143
    failed = JobReturn(overrides=["seed=1"], status=JobStatus.FAILED, _return_value=OSError("gone"))
    assert _code(failed) == 1 and "seed=1: OSError: gone" in capsys.readouterr().err


def test_without_slurm_nothing_is_submitted(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(place))
    result = train("-m", "hydra/launcher=slurm", "seed=0,1")
    assert result.code == 2 and "sbatch" in result.err and not (place / "runs").exists()


def test_the_queue_is_asked_and_says_when_it_has_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    from posenc.running.slurm import Queue

    squeue = place / "squeue"
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")

    def answers(text: str) -> None:
        squeue.write_text(f"#!/bin/sh\n{text}\n")
        squeue.chmod(0o755)

    queue = Queue()
    for job in ("7_0", "7_1", "8"):
        queue.register_job(job)
    answers(
        "echo '7_0|RUNNING|None'; echo '7_1|PENDING|Priority'; echo '8|CONFIGURING|None'; echo '9|FAILED|x'"
    )
    assert [queue.is_done(job, mode="force") for job in ("7_0", "7_1", "8")] == [False] * 3
    assert "Slurm: 1 configuring, 1 pending (Priority), 1 running\n" in capsys.readouterr().err
    answers("exit 1")  # the controller does not answer: nothing is known, nothing is over
    queue._last_status_check = 0
    assert not queue.is_done("7_0", mode="force")
    answers("echo; echo slurm says; echo '7_0|COMPLETING|None'; echo '7_1|CANCELLED|None'")
    queue._last_status_check = 0
    assert not queue.is_done("7_0", mode="force")
    assert queue.is_done("7_1", mode="cache") and queue.is_done("8", mode="cache")  # forgotten is over


REQUEUED = """
import os, signal, sys
os.environ["SLURM_JOB_ID"] = "5"
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

print(preemptible(run) if sys.argv[1] != "none" else preemptible(lambda: 1))
"""


@pytest.mark.parametrize(
    ("sent", "state", "said", "code"),
    [
        ("SIGUSR2", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "CANCELLED", "saved", 143),
        ("none", "RUNNING", "1", 0),
    ],
)
def test_what_is_stopped_is_saved_then_put_back_unless_slurm_has_decided(
    sent: str, state: str, said: str, code: int, place: Path
) -> None:
    pytest.importorskip("submitit")
    (place / "scontrol").write_text(f"#!/bin/sh\necho JobId=5 JobState={state} Reason=None\n")
    (place / "scontrol").chmod(0o755)
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    ask = [sys.executable, "-c", REQUEUED, sent]
    done = subprocess.run(
        ask, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path}, check=False
    )
    assert (done.stdout.split(), done.returncode) == (said.split(), code), done.stderr


@pytest.mark.slow
def test_a_killed_job_of_submitit_is_told_and_the_other_one_finished(place: Path, corpus: Path) -> None:
    pytest.importorskip("submitit")
    words = ["train", *LOCAL, *tiny.TINY, f"data.paths={corpus}", "train.tokens=64000", "seed=0,1"]
    process = tiny.start(*words, cwd=place)
    victims: list[Path] = []
    end = time.monotonic() + 200
    while not victims and time.monotonic() < end:
        victims = [p for p in place.glob("runs/default/*-s0-*/.run.holder") if p.read_text()]
        time.sleep(0.05)
    os.kill(int(victims[0].read_text().split()[1]), signal.SIGKILL)
    result = tiny.finished(process, 300)
    assert result.code == 1 and "ended without a result" in result.err, result.err
    assert "Traceback" not in result.err and "(log: " in result.err
    assert [line for line in result.out.splitlines() if line.startswith("rope")]
    again = tiny.spawn(*words, cwd=place)
    assert again.code == 0 and again.err.count("already finished") == 1, again.err


@pytest.mark.cluster
@pytest.mark.parametrize("part", ["sweep", "requeue", "preempt", "killed"])
def test_on_a_real_slurm(part: str) -> None:
    pytest.importorskip("submitit")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    script = ["bash", str(tiny.ROOT / "scripts/cluster_check.sh"), "--venv", sys.prefix, "--only", part]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
