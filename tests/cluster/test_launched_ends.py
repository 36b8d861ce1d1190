"""How the jobs of a launcher end, and what the one who waits for them is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tiny
from hydra.core.plugins import Plugins

from posenc.config.compose import ComposedJob, compose_jobs, of_the_job
from posenc.config.overrides import parse
from posenc.running import slurm
from posenc.running.signals import InterruptedRunError
from posenc.running.slurm import END, GO_ON, _code, run_launched


@pytest.mark.parametrize(
    ("before", "codes", "after", "launched", "code", "said"),
    [
        (["finished", "open"], [0], ["finished", "finished"], 1, 0, "[1/2] seed=0: already finished"),
        (["diverged", "open"], [0], ["diverged", "finished"], 1, 1, "[1/2] seed=0: diverged before"),
        (["open", "open"], [0, 1], ["finished", "finished"], 2, 0, "[2/2] seed=1: its run is finished"),
        (["open", "open"], [0, 0], ["finished", "open"], 2, 1, "[2/2] seed=1: its job ended with 0, but"),
        (["open", "open"], [0, 1], ["finished", "diverged"], 2, 1, ""),
        ([None, None], [0, 0], [None, None], 2, 0, ""),
        ([None, None], [0, 1], [None, None], 2, 1, ""),
        (["finished", "finished"], [], [], 0, 0, "[2/2] seed=1: already finished"),
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
    composed = compose_jobs("train", line)
    state = list(before)
    sent: list[str] = []

    def launch(command: str, line: object, jobs: list[ComposedJob]) -> list[int]:
        sent.extend(word for job in jobs for word in of_the_job(job))
        state[:] = after
        return codes

    monkeypatch.setattr(slurm, "_launch", launch)
    monkeypatch.setattr(slurm, "show_sweep", lambda *_: None)
    monkeypatch.setattr(slurm, "SEEN_WITHIN", 0.0)
    places = [place / "a", place / "b"]
    assert run_launched("train", line, composed, places, lambda i: state[i], {}) == code
    assert sent == ["seed=0", "seed=1"][2 - launched :]
    assert said in capsys.readouterr().err


def test_a_run_that_becomes_visible_late_is_finished(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = parse(["-m", "seed=0"])
    seen = iter(["open", "open", "open", "finished"])
    monkeypatch.setattr(slurm, "_launch", lambda *_: [0])
    monkeypatch.setattr(slurm, "show_sweep", lambda *_: None)
    assert run_launched("train", line, compose_jobs("train", line), [place], lambda i: next(seen), {}) == 0


@pytest.mark.parametrize(("launcher", "told"), [("slurm", GO_ON), ("submitit_local", END)])
def test_after_a_signal_it_says_whether_the_jobs_go_on(
    launcher: str,
    told: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("submitit")

    class Launcher:
        def launch(self, overrides: object, first: int) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda *_: Launcher())
    monkeypatch.setattr(slurm.shutil, "which", lambda _: "/bin/true")
    line = parse(["-m", f"hydra/launcher={launcher}", "seed=0"])
    assert run_launched("train", line, compose_jobs("train", line), [place], lambda i: "open", {}) == 143
    assert f"SIGTERM: {told}\n" in capsys.readouterr().err


def test_a_result_that_cannot_be_read_is_told_and_counts_as_failed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    from submitit.local.local import LocalJob

    from posenc.running.slurm import waited_for

    job = LocalJob(place, "7")
    job.paths.result_pickle.write_bytes(b"half a file")
    with waited_for():
        assert [_code(done) for done in job.results()] == [1]
    assert "job 7 of submitit left a result that cannot be read" in capsys.readouterr().err


def test_jobs_of_this_machine_end_with_the_one_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    from submitit.local import local

    from posenc.running.slurm import waited_for

    monkeypatch.setattr(local, "start_controller", lambda: subprocess.Popen(["sleep", "300"]))
    with pytest.raises(InterruptedRunError), waited_for():
        started = [local.start_controller(), local.start_controller()]
        raise InterruptedRunError
    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2


@pytest.mark.slow
def test_a_sweep_of_submitit_local_saves_on_sigterm(place: Path, corpus: Path) -> None:
    pytest.importorskip("submitit")
    sweep = ["train", "-m", "hydra/launcher=submitit_local", "seed=0,1"]
    words = [*sweep, *tiny.TINY, f"data.paths={corpus}", "train.tokens=640000"]
    process = tiny.start(*words, cwd=place)
    end = time.monotonic() + 200
    while len(list(place.glob("runs/default/*/metrics.jsonl"))) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    result = tiny.finished(process, 300)
    assert result.code == 143 and f"SIGTERM: {END}\n" in result.err, result.err
    left = [json.loads(path.read_text()) for path in place.glob("runs/default/*/status.json")]
    assert [status["status"] for status in left] == ["interrupted"] * 2
