"""Killed, stopped or struck at any moment: the same command ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from battery import LONG, LONG_STEPS, SAVES, SHORT, command, logged, run_in, wait_until, weights
from tiny_model import on_disk

Posenc = Callable[..., tiny.Result]
KINDS = {
    "bf16": ("train.precision=bf16",),
    "mla": ("attention=mla",),
    "randomized": ("positions=randomized",),
    "all": ("train.precision=bf16", "attention=mla", "positions=randomized"),
}


@pytest.fixture
def whole(train: Posenc, place: Path) -> dict[str, str]:
    """The weights of the long run that nothing happened to."""
    result = train(*LONG, "runs_dir=whole")
    assert result.code == 0, result.err
    return weights(place / "whole")


def test_kill_9_and_the_same_command(train: Posenc, place: Path, corpus: Path, whole: dict[str, str]) -> None:
    victim = tiny.start(*command(corpus, *LONG), cwd=place)
    wait_until(lambda: logged(place / "runs") > 3, victim)
    victim.kill()
    victim.communicate()
    again = train(*LONG)
    assert again.code == 0 and "continuing at step" in again.err, again.err
    assert weights(place / "runs") == whole
    lines = (run_in(place / "runs") / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len({line.partition(",")[0] for line in lines})


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("call", ["fsync", "rename", "unlinkat", "mkdir", "write"])
def test_kill_9_at_a_call_of_a_save(place: Path, corpus: Path, train: Posenc, call: str) -> None:
    """One kill after another in one directory, by strace's fault injection, then the run is let go on."""
    assert train(*SAVES, "runs_dir=whole").code == 0
    struck = 0
    for number in (2, 9, 23, 41, 58, 90):
        inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
        words = [sys.executable, "-m", "posenc", *command(corpus, *SAVES)]
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", "/dev/null", *inject, *words],
            cwd=place, env=tiny.environment(), capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -9, 137), done.stderr
        struck += done.returncode != 0
    assert struck >= 3
    again = tiny.spawn(*command(corpus, *SAVES), cwd=place)
    assert again.code == 0, again.err
    assert weights(place / "runs") == weights(place / "whole")


@pytest.mark.faults
@pytest.mark.parametrize(
    "numbers", [("SIGTERM", "SIGINT", "SIGUSR1"), ("SIGTERM", "SIGTERM")], ids=["each", "two in one save"]
)
def test_signals_one_after_another(
    place: Path, corpus: Path, whole: dict[str, str], numbers: tuple[str, ...]
) -> None:
    """Three starts, each stopped by another signal; or two signals at once while every step is saved."""
    at_once = len(set(numbers)) == 1
    for name in numbers[:1] if at_once else numbers:
        victim = tiny.start(*command(corpus, *LONG), cwd=place)
        before = logged(place / "runs")
        wait_until(lambda before=before: logged(place / "runs") > before + 1, victim)
        victim.send_signal(getattr(signal, name))
        if at_once:
            time.sleep(0.02)
            victim.send_signal(signal.SIGTERM)
        began, ended = time.monotonic(), tiny.finished(victim)
        assert ended.code == (130 if name == "SIGINT" else 143), ended.err
        assert time.monotonic() - began < 20 and "same command continues" in ended.err
    assert tiny.spawn(*command(corpus, *LONG), cwd=place).code == 0
    assert weights(place / "runs") == whole


@pytest.mark.faults
def test_another_number_of_threads_is_a_warning(place: Path, corpus: Path) -> None:
    victim = tiny.start(*command(corpus, *LONG), cwd=place)
    wait_until(lambda: logged(place / "runs"), victim)
    victim.terminate()
    assert tiny.finished(victim).code == 143
    assert "threads 1 -> 2" in tiny.spawn(*command(corpus, *LONG), cwd=place, OMP_NUM_THREADS="2").err


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.faults] * (k != "all")) for k in KINDS])
def test_a_stop_half_way_changes_no_bit_of_other_settings(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from posenc.training import loop

    words, real, steps = (*SHORT, *KINDS[kind]), loop.gradients, []

    def counted(*given: Any, **named: Any) -> Any:
        steps.append(named["precision"])
        if len(steps) == tiny.STEPS // 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given, **named)

    assert train(*words, "runs_dir=whole").code == 0
    assert train(*SHORT, "runs_dir=plain").code == 0
    monkeypatch.setattr(loop, "gradients", counted)
    stopped, half = train(*words), len(steps)
    assert (stopped.code, half) == (143, tiny.STEPS // 2), stopped.err
    again = train(*words)
    assert again.code == 0 and len(steps) == tiny.STEPS, again.err  # it did not begin afresh
    assert set(steps) == {"bf16" if "train.precision=bf16" in words else "fp32"}
    found = [on_disk(run_in(place / runs) / "checkpoints", tiny.STEPS) for runs in ("runs", "whole", "plain")]
    assert found[0] == found[1] != found[2]  # the settings are at work


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_stop_changes_no_bit_of_compiled_blocks(place: Path, corpus: Path) -> None:
    words = command(corpus, *LONG, "train.checkpoint_seconds=1e9", "train.compile=true")
    assert tiny.spawn(*words, "runs_dir=whole", cwd=place).code == 0
    victim = tiny.start(*words, cwd=place)
    wait_until(lambda: logged(place / "runs"), victim, 300)
    victim.terminate()
    assert tiny.finished(victim).code == 143
    again = tiny.spawn(*words, cwd=place)
    assert again.code == 0 and "continuing at step" in again.err, again.err
    found = [on_disk(run_in(place / runs) / "checkpoints", LONG_STEPS) for runs in ("runs", "whole")]
    assert found[0] == found[1]


PROGRAM = """
import os, sys
open(f"pid-{os.environ.get('RANK', 0)}", "w").write(str(os.getpid()))
sys.argv[0] = "train.py"
from posenc.cli import main
main("train")
"""


@pytest.mark.faults
@pytest.mark.parametrize(("rank", "then"), [(0, 1), (1, 3)])
def test_kill_9_of_one_process_of_two(place: Path, corpus: Path, rank: int, then: int) -> None:
    """All end soon; another number of processes goes on with the same run."""
    (place / "program.py").write_text(PROGRAM)

    def torchrun(count: int) -> subprocess.Popen[str]:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        words = (*command(corpus, *SHORT)[1:], "train.batch_tokens=192", f"train.tokens={300 * 192}")
        return subprocess.Popen(
            [*start, "program.py", *words, "train.checkpoint_seconds=0"],
            cwd=place, env=tiny.environment(PYTHONPATH=str(tiny.ROOT)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    both = torchrun(2)
    wait_until(lambda: logged(place / "runs") > 2, both)
    os.kill(int((place / f"pid-{rank}").read_text()), signal.SIGKILL)
    began = time.monotonic()
    assert tiny.finished(both).code != 0 and time.monotonic() - began < 60
    again = tiny.finished(torchrun(then))
    assert again.code == 0 and "continuing at step" in again.err, again.err
