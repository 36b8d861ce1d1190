"""Killed, stopped or struck at any moment: the same command ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from battery import LONG, SAVES, SHORT, command, run_in, wait_until, weights
from tiny_model import on_disk

Posenc = Callable[..., tiny.Result]
OTHER = ("train.precision=bf16", "attention=mla", "positions=randomized")


@pytest.fixture
def whole(train: Posenc, place: Path) -> dict[str, str]:
    """The weights of the long run that nothing happened to."""
    result = train(*LONG, "runs_dir=whole")
    assert result.code == 0, result.err
    return weights(place / "whole")


def test_kill_9_and_the_same_command(train: Posenc, place: Path, corpus: Path, whole: dict[str, str]) -> None:
    victim = tiny.start(*command(corpus, *LONG), cwd=place)
    wait_until(lambda: [*(place / "runs").glob("default/*/checkpoints/step-*")], victim)
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
def test_a_stop_half_way_changes_no_bit_of_other_settings(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc.training import loop

    words, real, steps = (*SHORT, *OTHER), loop.gradients, []

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
    assert set(steps) == {"bf16"}
    found = [on_disk(run_in(place / runs) / "checkpoints", tiny.STEPS) for runs in ("runs", "whole", "plain")]
    assert found[0] == found[1] != found[2]  # the settings are at work
