"""Sweeps by a launcher of Hydra's plug-ins; the real Slurm is scripts/cluster_check.sh."""

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
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus

from posenc.config.compose import ComposedJob, compose_jobs
from posenc.config.overrides import parse
from posenc.running import slurm, sweep
from posenc.running.slurm import END, GO_ON, _code, of_the_job, run_launched

Posenc = Callable[..., tiny.Result]


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


def test_without_slurm_nothing_is_submitted(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(place))
    result = train("-m", "hydra/launcher=slurm", "seed=0,1")
    assert result.code == 2 and "sbatch" in result.err and not (place / "runs").exists()


@pytest.mark.parametrize(
    ("before", "codes", "after", "launched", "code", "said"),
    [
        (["finished", "open"], [0], ["finished", "finished"], 1, 0, "seed=0: already finished"),
        (["diverged", "open"], [0], ["diverged", "finished"], 1, 1, "seed=0: diverged before"),
        (["open", "open"], [0, 1], ["finished", "finished"], 2, 0, ""),
        (["open", "open"], [0, 0], ["finished", "open"], 2, 1, "seed=1: failed, its job ended with 0, but"),
        (["open", "open"], [0, 1], ["finished", "diverged"], 2, 1, "seed=1: diverged"),
        ([None, None], [0, 1], [None, None], 2, 1, ""),
    ],
)
def test_the_run_directory_decides_what_is_launched_and_how_it_ended(
    before: list[str | None],
    codes: list[int],
    after: list[str | None],
    launched: int,
    code: int,
    said: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = parse(["-m", "seed=0,1"])
    state, sent = list(before), list[str]()

    def launch(command: str, line: object, jobs: list[ComposedJob]) -> list[int]:
        sent.extend(word for job in jobs for word in of_the_job(job))
        state[:] = after
        return codes

    monkeypatch.setattr(slurm, "_launch", launch)
    monkeypatch.setattr(sweep, "state_of", lambda command, settings: state[settings["seed"]])
    monkeypatch.setattr(slurm, "SEEN_WITHIN", 0.0)
    assert run_launched("train", line, compose_jobs("train", line)) == code
    assert sent == ["seed=0", "seed=1"][2 - launched :]
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("launcher", "told"), [("slurm", GO_ON), ("submitit_local", END)])
def test_after_a_signal_it_says_whether_the_jobs_go_on(
    launcher: str,
    told: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Processes of this machine end with the one who waits for them."""
    pytest.importorskip("submitit")
    started: list[subprocess.Popen[bytes]] = []

    class Launcher:
        def launch(self, overrides: object, first: int) -> None:
            started.append(subprocess.Popen(["sleep", "60"]))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda *_: Launcher())
    monkeypatch.setattr(slurm.shutil, "which", lambda _: "/bin/true")
    line = parse(["-m", f"hydra/launcher={launcher}", "seed=0"])
    assert run_launched("train", line, compose_jobs("train", line)) == 143
    assert f"SIGTERM: {told}\n" in capsys.readouterr().err
    assert (started[0].poll() is None) == (launcher == "slurm")
    started[0].kill()
    started[0].wait()


def test_a_job_without_a_result_counts_as_failed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    from submitit.local.local import LocalJob

    assert _code(JobReturn(status=JobStatus.COMPLETED, _return_value=143)) == 143
    failed = JobReturn(overrides=["seed=1"], status=JobStatus.FAILED, _return_value=OSError("gone"))
    assert _code(failed) == 1 and "seed=1: OSError: gone" in capsys.readouterr().err
    job = LocalJob(place, "7")
    job.paths.result_pickle.write_bytes(b"half a file")
    with slurm.waiting_for_each():
        assert [_code(done) for done in job.results()] == [1]
    assert "job 7 of submitit left no result" in capsys.readouterr().err


def test_the_queue_tells_which_jobs_are_over(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    queue = slurm.queue_watcher()

    def answers(text: str) -> None:
        (place / "squeue").write_text(f"#!/bin/sh\n{text}\n")
        (place / "squeue").chmod(0o755)
        queue._last_status_check = 0

    for job in ("7_0", "7_1", "8"):
        queue.register_job(job)
    answers("echo '7_0|RUNNING'; echo '7_1|PENDING'; echo '8|CONFIGURING'")
    assert [queue.is_done(job, mode="force") for job in ("7_0", "7_1", "8")] == [False] * 3
    answers("exit 1")  # the controller does not answer: nothing is known, nothing is over
    assert not queue.is_done("7_0", mode="force")
    answers("echo; echo slurm says; echo '7_0|COMPLETING'; echo '7_1|CANCELLED'")
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

print(preemptible(run))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "state", "said", "code"),
    [
        ("SIGUSR2", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "RUNNING", "saved requeued", 255),
        ("SIGTERM", "CANCELLED", "saved", 143),
    ],
)
def test_what_is_stopped_is_saved_then_put_back_unless_slurm_has_decided(
    sent: str, state: str, said: str, code: int, place: Path
) -> None:
    pytest.importorskip("submitit")
    (place / "scontrol").write_text(f"#!/bin/sh\necho JobId=5 JobState={state} Reason=None\n")
    (place / "scontrol").chmod(0o755)
    ask = [sys.executable, "-c", REQUEUED, sent]
    path = {**os.environ, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(ask, capture_output=True, text=True, timeout=120, env=path, check=False)
    assert (done.stdout.split(), done.returncode) == (said.split(), code), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kills", [True, False])
def test_a_sweep_of_submitit_local_is_killed_or_stopped_and_continues(
    kills: bool, place: Path, corpus: Path
) -> None:
    pytest.importorskip("submitit")
    sweep = ["train", "-m", "hydra/launcher=submitit_local", "seed=0,1"]
    words = [*sweep, *tiny.TINY, f"data.paths={corpus}", "train.tokens=64000"]
    process, end = tiny.start(*words, cwd=place), time.monotonic() + 200
    while len(list(place.glob("runs/default/*/metrics.jsonl"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    if kills:
        (holder,) = place.glob("runs/default/*-s0-*/.run.holder")
        os.kill(int(holder.read_text().split()[1]), signal.SIGKILL)
    else:
        process.send_signal(signal.SIGTERM)
    result = tiny.finished(process, 300)
    assert result.code == (1 if kills else 143) and "Traceback" not in result.err, result.err
    assert ("left no result" if kills else f"SIGTERM: {END}\n") in result.err
    again = tiny.spawn(*words, cwd=place)
    assert again.code == 0 and again.err.count("already finished") == int(kills), again.err


@pytest.mark.cluster
@pytest.mark.parametrize("part", ["sweep", "requeue", "preempt", "killed"])
def test_on_a_real_slurm(part: str) -> None:
    pytest.importorskip("submitit")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root")
    script = ["bash", str(tiny.ROOT / "scripts/cluster_check.sh"), "--venv", sys.prefix, "--only", part]
    done = subprocess.run(script, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
