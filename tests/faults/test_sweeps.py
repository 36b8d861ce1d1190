"""Sweeps whose jobs die, each in its own way; two at once; stopped; duplicates."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from battery import SHORT, logged, statuses, wait_until, weights

pytestmark = pytest.mark.faults
Posenc = Callable[..., tiny.Result]
PLUGIN = """
import os, signal, sys
from posenc.encodings.base import Encoding

class Own(Encoding):
    paper, formula, acts_on, past_training = "none", "none", "nothing", "none"

def dies(how):
    class Dies(Own):
        name = how.__name__
        def embed(self, x, pos, layer):
            return how(x)
    Dies.__name__ = how.__name__.title()
    globals()[Dies.__name__] = Dies

@dies
def raises(x): raise KeyError("boom")
@dies
def leaves(x): sys.exit(0)
@dies
def aborts(x): os.abort()
@dies
def killed(x): os.kill(os.getpid(), signal.SIGKILL)
@dies
def explodes(x): return x * float("inf")
@dies
def garbage(x):
    os.write(2, bytes(range(256)) * 40)
    os._exit(0)
"""
DEATHS = {  # what the list at the end says of each
    "raises": "failed, KeyError: 'boom'",
    "leaves": "failed, SystemExit: 0",
    "aborts": "killed by SIGABRT",
    "killed": "killed by SIGKILL",
    "explodes": "diverged, non-finite loss at step 1",
    "garbage": "exit code 0 before it was finished",
}
LAUNCHERS = [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")]


@pytest.fixture
def sweep(place: Path, corpus: Path) -> Callable[..., tiny.Result]:
    """`posenc train -m` at the tiny size, as a process, with encodings that die."""
    (place / "plug.py").write_text(PLUGIN)
    (place / "conf" / "encoding").mkdir(parents=True)
    for name in DEATHS:
        (place / "conf" / "encoding" / f"{name}.yaml").write_text(f"name: {name}\n")
    given = ("train", "-m", "--config-dir", "conf", "plugins=[plug]", *tiny.TINY, f"data.paths={corpus}")

    def run(*words: str) -> tiny.Result:
        return tiny.spawn(*given, *SHORT, *words, cwd=place, PYTHONPATH=f"{tiny.ROOT}{os.pathsep}{place}")

    return run


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=["basic", "joblib"])
def test_a_death_is_its_own_and_listed_with_reason_and_log(
    sweep: Callable[..., tiny.Result], place: Path, launcher: tuple[str, ...]
) -> None:
    names = ",".join(["rope", *DEATHS, "alibi"])
    for turn in range(2):
        done = sweep(f"encoding={names}", *launcher)
        assert done.code == 1 and statuses(place / "runs").count("finished") == 2, done.err
        assert done.err.isprintable() or "\x1b" not in done.err
        lines = done.err.splitlines()
        for name, reason in DEATHS.items():
            i = max(i for i, line in enumerate(lines) if f"] {name}: " in line)
            assert reason in lines[i], lines[i]
            log = Path(lines[i].partition(" (log: ")[2].removesuffix(")"))
            assert (place / log).stat().st_size
        assert (done.err.count("already finished") == 2) == bool(turn)
        assert ("final without --retry" in done.err) == bool(turn)
    (log,) = place.glob("runs/default/aborts-*/log.txt")
    assert "Fatal Python error: Aborted" in log.read_text() and "plug.py" in log.read_text()
    good = sweep("encoding=rope,alibi", *launcher)
    assert good.code == 0 and "verdict at" in good.out, good.err


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=["basic", "joblib"])
def test_two_of_the_same_sweep_share_the_work(place: Path, corpus: Path, launcher: tuple[str, ...]) -> None:
    words = ("train", "-m", *launcher, *tiny.TINY, f"data.paths={corpus}", *SHORT, "seed=0,1,2")
    both = [tiny.start(*words, "train.tokens=32000", cwd=place) for _ in range(2)]
    first, second = (tiny.finished(process, 400) for process in both)
    assert first.code == second.code == 0, first.err + second.err
    assert first.out == second.out and "verdict" in first.out
    assert statuses(place / "runs") == ["finished"] * 3
    for path in place.glob("runs/default/*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("launcher", LAUNCHERS, ids=["basic", "joblib"])
def test_a_sweep_that_is_stopped_goes_on_with_the_same_weights(
    place: Path, corpus: Path, launcher: tuple[str, ...], number: signal.Signals
) -> None:
    words = ("train", "-m", *launcher, *tiny.TINY, f"data.paths={corpus}", *SHORT, "seed=0,1,2")
    words = (*words, "train.tokens=64000", "train.checkpoint_seconds=0.2")
    assert tiny.spawn(*words, "runs_dir=whole", cwd=place).code == 0
    victim = tiny.start(*words, cwd=place)
    wait_until(lambda: logged(place / "runs") > 2, victim)
    victim.send_signal(number)
    ended = tiny.finished(victim)
    assert ended.code == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number], ended.err
    end = time.monotonic() + 30
    while "running" in statuses(place / "runs") and time.monotonic() < end:
        time.sleep(0.1)  # killed, it told its jobs nothing: they notice
    assert "interrupted" in statuses(place / "runs") and "running" not in statuses(place / "runs")
    again = tiny.spawn(*words, cwd=place)
    assert again.code == 0, again.err
    assert weights(place / "runs") == weights(place / "whole")
