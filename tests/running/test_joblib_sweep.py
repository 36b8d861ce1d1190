"""`-m hydra/launcher=joblib`: what a user of the ordinary sweep expects, several jobs at a time."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

from posenc.config.compose import ComposedJob, Jobs
from posenc.config.overrides import CommandLine
from posenc.core.machine import usable_cores
from posenc.running import sweep as module
from posenc.running.sweep_runner import Runner

sys.path.append(str(Path(__file__).resolve().parent.parent / "cli"))
from pseudo_terminal import Terminal

Posenc = Callable[..., tiny.Result]
TWO = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
ONE_LENGTH = ("eval.lengths=[1x]", "eval.protocols=[fixed-target]")

PLUGIN = """
import os
import sys
import torch
from posenc.encodings.base import Encoding

class Own(Encoding):
    paper, formula, acts_on, past_training = "none", "none", "nothing", "none"

class Dies(Own):
    name = "dies"

    def embed(self, x, pos, layer):
        os.kill(os.getpid(), 9)

class Leaves(Own):
    name = "leaves"

    def embed(self, x, pos, layer):
        sys.exit(7)

class Talks(Own):
    name = "talks"

    def embed(self, x, pos, layer):
        if self.training:
            print("threads", torch.get_num_threads())
        return x
"""


def weights(runs: Path) -> dict[str, str]:
    """sha256 of the last weights, by run."""
    found = {}
    for run in sorted((runs / "default").iterdir()):
        last = max((run / "checkpoints").iterdir())
        found[run.name] = hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()
    return found


def statuses(runs: Path) -> list[str]:
    return [json.loads(path.read_text())["status"] for path in runs.glob("default/*/status.json")]


@pytest.mark.slow
def test_stopped_and_continued_it_ends_with_the_weights_of_the_ordinary_sweep(
    train: Posenc, place: Path, corpus: Path
) -> None:
    """Stopped on a pipe, continued on a terminal."""
    long = ("train.tokens=64000", "train.log_every=5", *ONE_LENGTH)  # 500 updates
    for seed in (0, 1):
        assert train(*long, f"seed={seed}", "runs_dir=whole").code == 0
    sweep = ["train", "-m", *TWO, *tiny.TINY, f"data.paths={corpus}", *long, "seed=0,1,2"]

    process, runs = tiny.start(*sweep, cwd=place), place / "runs"
    end = time.monotonic() + 200
    while len(list(runs.glob("default/*/metrics.jsonl"))) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    result = tiny.finished(process, 600)
    assert result.code == 130, result.err
    assert statuses(runs) == ["interrupted"] * 2 and len(weights(runs)) == 2
    assert result.err.count(": begins") == 2 and "Traceback" not in result.err  # the third never began
    assert "2 jobs, 2 at once" in result.err

    command = [sys.executable, "-m", "posenc", *sweep[:-1], "seed=0,1"]
    terminal = Terminal(command, place, tiny.environment(), columns=100)
    try:
        assert terminal.wait(300) == 0, terminal.seen
    finally:
        terminal.close()
    seen = terminal.seen
    assert weights(runs) == weights(place / "whole") and statuses(runs) == ["finished"] * 2
    assert re.search(r"\[1/2\] seed=0: continuing at step", seen) and re.search(r"\[2/2\] seed=1: 1x ", seen)
    assert re.search(r"sweep +\S+ +0/2", seen) and re.search(r"sweep +\S+ +1/2", seen)
    assert re.search(r"\[\d/2\] seed=\d +\S+ +\d+/500 training  loss", seen)  # a bar
    assert re.search(r"nats per token +runs +1x", seen) and "2 jobs, 2 at once: " in seen


@pytest.mark.slow
def test_the_death_of_a_job_is_its_own(place: Path, corpus: Path) -> None:
    (place / "odd.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    names = ("dies", "leaves", "talks")
    for name in names:
        (place / "conf" / "encoding" / f"{name}.yaml").write_text(f"name: {name}\n")
    sweep = [*tiny.TINY, *ONE_LENGTH, f"data.paths={corpus}", "plugins=[odd]", f"encoding={','.join(names)}"]
    words = ("train", "--config-dir", "conf", *TWO, *sweep, "-m")
    process = tiny.start(*words, cwd=place, PYTHONPATH=str(place), OMP_NUM_THREADS="")
    result = tiny.finished(process, 600)
    assert result.code == 1 and "Traceback" not in result.err
    ends = {name: f"[{number}/3] {name}: " for number, name in enumerate(names, 1)}
    for name, how in (
        ("dies", "killed by SIGKILL"),
        ("leaves", "failed, SystemExit: 7"),
    ):
        assert ends[name] + how in result.err, result.err
    logs = re.findall(r"^  log: (runs/default/(\w+)-.*)$", result.err, re.M)
    assert [name for _, name in logs] == ["dies", "leaves"]
    assert all((place / log).read_text() for log, _ in logs)
    assert f"{ends['talks']}1x " in result.err  # its losses
    assert f"threads {max(1, usable_cores() // 2)}\n" in result.out
    assert len([line for line in result.out.splitlines() if line.startswith("talks ")]) >= 1
    # every line of a job has its name before it
    said = [line for line in result.err.splitlines() if "training 40/40" in line]
    assert len(said) == 1 and said[0].startswith(ends["talks"]) and "of 3 done" in said[0]


def test_what_is_finished_is_not_started_and_what_is_wrong_starts_nothing(
    posenc: Posenc, train: Posenc, run_copy: Path, place: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_copy.rglob("*")}
    result = train("-m", *TWO, "encoding=rope", "seed=0")
    assert result.code == 0 and "already finished" in result.err and "begins" not in result.err
    assert "fixed-target: nats per token" in result.out
    wrong = train("-m", *TWO, "encoding=rope,ropee", "seed=0,1")
    assert wrong.code == 2 and "ropee" in wrong.err and wrong.out == ""
    assert {path: path.stat().st_mtime_ns for path in run_copy.rglob("*")} == before
    assert list((place / "runs" / "default").iterdir()) == [run_copy]


SLOW = """
import sys, time
log = open(sys.argv[1], "a", buffering=1)
log.write(f"begin {sys.argv[2]}\\n")
time.sleep(float(sys.argv[3]))
log.write(f"end {sys.argv[2]}\\n")
"""


def test_as_many_as_asked_for_at_once_and_one_in_a_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs 0 and 1 are of one directory, as with `device=cpu,auto`; job 4 is finished."""
    log, seconds = place / "log", (0.8, 0.1, 0.1, 0.1, 9)

    def words(self: object, i: int) -> list[str]:
        return [sys.executable, "-S", "-c", SLOW, str(log), str(i), str(seconds[i])]

    monkeypatch.setattr(Runner, "words", words)
    monkeypatch.setattr(module, "_show_tables", lambda *_: None)
    jobs = [ComposedJob([f"seed={i}", *TWO], {"device": "cpu", "encoding": {}}) for i in range(5)]
    places = [place / name for name in ("a", "a", "b", "c", "d")]
    line = CommandLine([], True, None, False, False)

    def order(at_once: int) -> list[str]:
        log.write_text("")

        def stands(i: int) -> str | None:
            return "finished" if i == 4 else None

        assert module.run_sweep("train", line, Jobs(jobs, at_once), places, stands, {}) == 0
        assert "[5/5] seed=4: already finished" in capsys.readouterr().err
        return log.read_text().splitlines()

    assert order(1) == [f"{what} {i}" for i in range(4) for what in ("begin", "end")]
    two = order(2)
    assert sorted(two[:2]) == ["begin 0", "begin 2"]  # not 1, which is of the same directory
    assert two[2:] == ["end 2", "begin 3", "end 3", "end 0", "begin 1", "end 1"]
    three = order(9)
    assert sorted(three[:3]) == ["begin 0", "begin 2", "begin 3"] and three[-2:] == ["begin 1", "end 1"]
