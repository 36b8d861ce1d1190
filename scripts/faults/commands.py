"""posenc as a process on a corpus and a model small enough for a run of a second."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STEPS = 40
TINY = (
    "model.d_model=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "data=files",
    "context_length=16",
    f"train.tokens={STEPS * 128}",
    "train.batch_tokens=128",
    "train.precision=fp32",
    "train.log_every=10",
    "device=cpu",
    "eval.lengths=[1x,2x]",
    "eval.max_targets=400",
    "eval.protocols=[fixed-target]",
)


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str
    seconds: float


def write_corpus(folder: Path, documents: int = 60) -> Path:
    """Files of 2 to 4 kB of words, the same on every machine."""
    chance = random.Random(0)
    words = ["".join(chance.choice("etaoinshrdlu") for _ in range(chance.randint(2, 8))) for _ in range(150)]
    folder.mkdir(parents=True)
    for i in range(documents):
        size, text = 2000 + 2000 * i // documents, ""
        while len(text) < size:
            text += chance.choice(words) + (" " if chance.random() < 0.9 else ".\n")
        (folder / f"{i:03d}.txt").write_text(text)
    return folder


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
