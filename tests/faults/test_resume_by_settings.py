"""Stopped and continued = not stopped, bit for bit: bf16, mla, randomized positions, compiled blocks."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny_model import on_disk

Posenc = Callable[..., tiny.Result]
SHORT = ("encoding=rope", "eval.lengths=[1x]", "eval.max_targets=100", "eval.protocols=[fixed-target]")
KINDS = {
    "bf16": ("train.precision=bf16",),
    "mla": ("attention=mla",),
    "randomized": ("positions=randomized",),
    "all": ("train.precision=bf16", "attention=mla", "positions=randomized"),
}


def checkpoints(runs: Path) -> Path:
    (run,) = (path for path in (runs / "default").iterdir() if not path.name.startswith("."))
    return run / "checkpoints"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "all" else [pytest.mark.slow]) for kind in KINDS]
)
def test_a_stop_half_way_changes_no_bit(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from posenc.training import loop

    words, real, steps = (*SHORT, *KINDS[kind]), loop.gradients, []

    def counted(*given: Any, **named: Any) -> Any:
        steps.append(named["precision"])
        if len(steps) == tiny.STEPS // 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given, **named)

    whole = train(*words, "runs_dir=whole")
    assert whole.code == 0, whole.err
    monkeypatch.setattr(loop, "gradients", counted)
    stopped, half = train(*words), len(steps)
    assert (stopped.code, half) == (143, tiny.STEPS // 2), stopped.err
    again = train(*words)
    assert again.code == 0 and len(steps) == tiny.STEPS, again.err  # it did not begin afresh
    assert set(steps) == {"bf16" if "train.precision=bf16" in words else "fp32"}
    assert on_disk(checkpoints(place / "runs"), tiny.STEPS) == on_disk(
        checkpoints(place / "whole"), tiny.STEPS
    )


def test_the_settings_make_other_weights(train: Posenc, place: Path) -> None:
    """Each of the above is at work: without that the test before would say nothing of it."""
    found = []
    for kind, more in {"none": (), **KINDS}.items():
        assert train(*SHORT, *more, f"runs_dir={kind}", "train.tokens=128").code == 0
        found.append(on_disk(checkpoints(place / kind), 1)[1])
    assert len(set(found)) == len(found)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_a_stop_in_mid_training_changes_no_bit_of_compiled_blocks(place: Path, corpus: Path) -> None:
    steps = 600
    words = ["train", *tiny.TINY, f"data.paths={corpus}", *SHORT, "train.compile=true"]
    words += [f"train.tokens={steps * 128}", "train.checkpoint_seconds=1e9"]
    env = {"POSENC_CACHE": os.environ["POSENC_CACHE"]}
    whole = tiny.spawn(*words, "runs_dir=whole", cwd=place, **env)
    assert whole.code == 0, whole.err
    process, end = tiny.start(*words, cwd=place, **env), time.monotonic() + 300
    while not list(place.glob("runs/default/*/metrics.jsonl")) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    stopped = tiny.finished(process)
    assert stopped.code == 143, stopped.err
    (saved,) = checkpoints(place / "runs").iterdir()
    assert 0 < int(saved.name.removeprefix("step-")) < steps
    again = tiny.spawn(*words, cwd=place, **env)
    assert again.code == 0 and "continuing at step" in again.err, again.err
    assert on_disk(checkpoints(place / "runs"), steps) == on_disk(checkpoints(place / "whole"), steps)
