"""posenc as a process on a corpus and a model small enough for a run of a second."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from tiny import STEPS, write_corpus
from tiny import TINY as TEST_RUN

__all__ = ["STEPS", "write_corpus"]  # and what is defined here

TINY = (*TEST_RUN, "eval.lengths=[1x,2x]", "eval.protocols=[fixed-target]")


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str
    seconds: float


def environment(place: Path, **more: str) -> dict[str, str]:
    """One thread, a cache of its own below `place`, nothing of the user's that changes what happens."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("POSENC_", "HYDRA_", "WANDB_", "HF_", "TRACKIO_")) and k != "COLUMNS"
    }
    ours = {"POSENC_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **ours, **more}


def start(
    place: Path, *words: str, before: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`posenc words` in `place`, behind the command `before` (strace, prlimit)."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "posenc", *words],
        cwd=place,
        env=environment(place, **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def finish(process: subprocess.Popen[str], seconds: float = 300) -> Ended:
    """Wait for it; killed after `seconds`, which counts as exit code -9 with a word of it on stderr."""
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nstill running after {seconds} s"
    return Ended(process.returncode, out, err, time.monotonic() - began)


def posenc(
    place: Path,
    *words: str,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    seconds: float = 300,
) -> Ended:
    """Start it and wait."""
    return finish(start(place, *words, before=before, env=env), seconds)


def digests(folder: Path, pattern: str = "**/*") -> dict[str, str]:
    """sha256 of every file of `folder` that matches, by its path in there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
        if path.is_file() and not path.is_symlink()
    }
