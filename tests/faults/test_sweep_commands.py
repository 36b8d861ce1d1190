"""Sweeps by the real command: --retry, one run a grid point, two sweeps that share their work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.running.env_vars import IF_HELD, RETRY
from posenc.running.run_job import run_job
from posenc.running.run_lock import locked

Posenc = Callable[..., tiny.Result]
SHORT = ("eval.lengths=[1x]", "eval.protocols=[fixed-target]")

ABORTS = """
import os
from posenc.encodings.base import Encoding

class Aborts(Encoding):
    name, paper, formula, acts_on, past_training = "aborts", "none", "none", "nothing", "none"

    def embed(self, x, pos, layer):
        os.abort()
"""


def status_of(runs: Path) -> dict[str, object]:
    (path,) = runs.glob("default/*/status.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_retry_trains_a_diverged_run_again_from_the_start(train: Posenc, posenc: Posenc, place: Path) -> None:
    wild = ("encoding=rope", "train.lr=1e12", *SHORT)
    first = train(*wild)
    assert first.code == 1 and "training diverged" in first.err
    (run,) = (place / "runs" / "default").iterdir()
    assert "failed: training diverged: non-finite loss at step 2" in (run / "log.txt").read_text()
    before = status_of(place / "runs")
    again = train(*wild)
    assert again.code == 1 and "diverged before" in again.err and "--retry" in again.err
    sweep = train(*wild, "-m")
    assert sweep.code == 1 and "which is final without --retry" in sweep.err
    assert status_of(place / "runs") == before
    # as after an hour of training: what it was trained to is forgotten
    (run / "checkpoints" / "step-00000001").mkdir(parents=True)
    (run / "checkpoints" / "step-00000001" / "model.safetensors").write_text("what it diverged from")
    retried = train(*wild, "--retry")
    assert retried.code == 1 and "training diverged" in retried.err and "diverged before" not in retried.err
    assert status_of(place / "runs")["status"] == "diverged" and RETRY not in os.environ
    assert not (run / "checkpoints").exists() and not (run / ".diverged").exists()
    wrong = posenc("eval", f"run={run}", "--retry")
    assert wrong.code == 2 and "--retry: is an option of posenc train alone" in wrong.err
    helped = posenc("train", "--help")
    assert "--retry" in helped.out and "fail_fast" in helped.out


def test_a_grid_point_runs_once_however_it_is_written(train: Posenc, place: Path) -> None:
    result = train("-m", "train.tokens=1280,1.28e3", "train.lr=2e-3,0.002", "train.log_every=5,10", *SHORT)
    assert result.code == 0, result.err
    assert len(list((place / "runs" / "default").iterdir())) == 1 and "[1/1]" in result.err
    assert "the same run as" in result.err and "comes to the same: train.log_every" in result.err
    again = train("-m", "train.tokens=1280", "train.log_every=5", *SHORT)
    assert again.code == 0 and "already finished" in again.err


@pytest.mark.slow
def test_other_lengths_of_one_run_are_no_duplicates(train: Posenc, run_copy: Path) -> None:
    result = train("-m", "encoding=rope", "'eval.lengths=[1x],[2x]'".strip("'"))
    assert result.code == 0 and "the same run as" not in result.err, result.err


def test_a_wrong_value_in_the_third_job_begins_none(train: Posenc, place: Path) -> None:
    result = train("-m", "seed=0,1,-3,4,5")
    assert result.code == 2 and "job 3 of 5" in result.err and not list(place.glob("runs/*"))


def test_fail_fast_does_not_change_the_run(train: Posenc, run_copy: Path) -> None:
    result = train("encoding=rope", "sweep.fail_fast=true")
    assert result.code == 0 and "already finished" in result.err
    assert "sweep" not in (run_copy / "config.yaml").read_text()
    wrong = train("encoding=rope", "sweep.fail_fas=true")
    assert wrong.code == 2 and "sweep.fail_fast" in wrong.err


def test_a_job_whose_run_is_held_tells_its_sweep(
    run_copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse

    (job,) = compose_jobs("eval", parse([f"run={run_copy}", *SHORT])).jobs
    with locked(run_copy, "evaluation"):
        assert run_job("eval", job.settings, in_sweep=True) == 1
        assert "another process" in capsys.readouterr().err
        monkeypatch.setenv(IF_HELD, "75")
        assert run_job("eval", job.settings, in_sweep=True) == 75
    assert not (run_copy / "log.txt").exists() or "failed" not in (run_copy / "log.txt").read_text()


def test_where_an_abort_struck_is_in_the_log(place: Path, corpus: Path) -> None:
    (place / "odd.py").write_text(ABORTS)
    (place / "conf" / "encoding").mkdir(parents=True)
    (place / "conf" / "encoding" / "aborts.yaml").write_text("name: aborts\n")
    words = ("--config-dir", "conf", *tiny.TINY, f"data.paths={corpus}", "plugins=[odd]", "encoding=aborts")
    result = tiny.finished(tiny.start("train", *words, cwd=place, PYTHONPATH=str(place)), 600)
    assert result.code == -6
    (log,) = place.glob("runs/default/*/log.txt")
    assert "Fatal Python error: Aborted" in log.read_text() and "odd.py" in log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")])
def test_two_of_the_same_sweep_share_the_work(launcher: tuple[str, ...], place: Path, corpus: Path) -> None:
    sweep = ("train", "-m", *launcher, *tiny.TINY, f"data.paths={corpus}", *SHORT, "seed=0,1,2")
    both = [tiny.start(*sweep, "train.tokens=32000", cwd=place) for _ in range(2)]
    first, second = (tiny.finished(process, 400) for process in both)
    assert first.code == second.code == 0, first.err + second.err
    assert first.out == second.out and "fixed-target: nats per token" in first.out
    assert (first.err + second.err).count("training 250/250") == 3
    for path in place.glob("runs/default/*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert len(set(steps)) == len(steps)
