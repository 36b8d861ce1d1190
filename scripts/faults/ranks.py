"""One run by several processes of torchrun: one killed, all stopped, resumed by another number of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, environment, write_corpus

WITHIN = 60.0  # seconds from the death of one to the end of all
NATS = 1e-3  # losses of one and of several processes differ by rounding, which grows with the updates
STEPS = 200
RUN = (
    *TINY,
    f"train.tokens={STEPS * 128}",
    "train.checkpoint_seconds=0.2",
    "data.paths=texts",
    "encoding=rope",
)
# train.py that tells of its phases: a file when process RANK enters a function for the nth time, and the
# sha256 of every batch.
PROGRAM = """
import hashlib, importlib, os, pathlib, sys
where, rank, count, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])
own = os.environ.get("RANK", "0")
(folder / f"pid-{own}").write_text(str(os.getpid()))
if own == rank:
    module, name = where.split(":")
    owner = importlib.import_module(module)
    real = getattr(owner, name)
    def entered(*given, **named):
        global count
        count -= 1
        if count == 0:
            (folder / "marker").touch()
        return real(*given, **named)
    setattr(owner, name, entered)
from posenc.data import WindowSampler
batch = WindowSampler.batch
def watched(self, step, size):
    given = batch(self, step, size)
    digest = hashlib.sha256(b"".join(part.tobytes() for part in given)).hexdigest()
    with (folder / f"batches-{own}.txt").open("a") as file:
        file.write(f"{step} {digest}\\n")
    return given
WindowSampler.batch = watched
sys.argv[:] = ["train.py", *sys.argv[5:]]
from posenc.cli import main
main("train")
"""
PHASES = {
    "training": ("posenc.training.loop:update", 60),
    "a save": ("posenc.training.loop:save_checkpoint", 2),
    "evaluation": ("posenc.evaluation.forward_cache:window_losses", 1),
}


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Kills of either process in each phase, and signals to torchrun."""
    write_corpus(place / "texts")
    (place / "program.py").write_text(PROGRAM)
    whole = _start(place, "whole", 1, "training", 0)
    ended = _finish(whole)
    if ended.code:
        raise RuntimeError(ended.err[-600:])
    kills = [("training", 0), ("training", 1), ("a save", 0), ("evaluation", 0), ("evaluation", 1)]
    for phase, rank in kills[1:3] if quick else kills:
        then = 1 if rank else 3  # processes that go on with it
        yield Case(
            f"kill -9 of process {rank} of 2 in {phase}",
            f"all ended in {WITHIN:.0f} s, exit not 0; {then} go on: same batches, losses within {NATS} nats",
            lambda phase=phase, rank=rank, then=then: _killed(place, phase, rank, then),
        )
    for number in [signal.SIGTERM] if quick else [signal.SIGTERM, signal.SIGINT]:
        yield Case(
            f"{number.name} to torchrun",
            "interrupted, saved by the first, all ended; the same command goes on",
            lambda number=number: _stopped(place, number),
        )
    yield Case(
        "SIGTERM to one process of 2 alone",
        "both stop after the same step, saved; the same command goes on",
        lambda: _stopped(place, signal.SIGTERM, rank=1),
    )


def _start(place: Path, folder: str, count: int, phase: str, rank: int) -> subprocess.Popen[str]:
    where, times = PHASES[phase]
    (place / folder).mkdir(exist_ok=True)
    (place / folder / "marker").unlink(missing_ok=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    runs = f"runs_dir={folder}/runs"
    told = [where, str(rank), str(times), str(place / folder), *RUN, runs]
    return subprocess.Popen(
        [sys.executable, *(launcher if count > 1 else []), str(place / "program.py"), *told],
        cwd=place,
        env=environment(place),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(process: subprocess.Popen[str], seconds: float = 300) -> Ended:
    """Wait; what hangs is asked to end first, or torchrun's processes would outlive it."""
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate()
        err += f"\nstill running after {seconds} s"
    return Ended(process.returncode, out, err, time.monotonic() - began)


def _at(place: Path, folder: str, process: subprocess.Popen[str]) -> None:
    """Wait for the phase, and a moment of it."""
    last = time.monotonic() + 300
    while process.poll() is None and not (place / folder / "marker").exists() and time.monotonic() < last:
        time.sleep(0.005)
    time.sleep(random.Random(folder).random() * 0.02)


def _pid(place: Path, folder: str, rank: int) -> int:
    return int((place / folder / f"pid-{rank}").read_text())


def _killed(place: Path, phase: str, rank: int, then: int) -> Seen:
    folder = f"{phase.replace(' ', '-')}-{rank}"
    process = _start(place, folder, 2, phase, rank)
    _at(place, folder, process)
    with contextlib.suppress(ProcessLookupError):
        os.kill(_pid(place, folder, rank), signal.SIGKILL)
    began = time.monotonic()
    ended = _finish(process)
    seconds = time.monotonic() - began
    wrong = [] if seconds < WITHIN else [f"ended after {seconds:.0f} s"]
    wrong += [] if ended.code else ["exit 0"]
    wrong += ["a process is left"] if any(_lives(_pid(place, folder, one)) for one in (0, 1)) else []
    status = _status(place, folder)["status"]
    wrong += [] if status in ("running", "failed") else [f"status {status}"]
    wrong += _goes_on(place, folder, then)
    return Seen(f"all ended after {seconds:.1f} s, then `{status}`", 1, int(bool(wrong)), tuple(wrong))


def _stopped(place: Path, number: signal.Signals, rank: int | None = None) -> Seen:
    folder = f"{number.name}-{'all' if rank is None else rank}"
    process = _start(place, folder, 2, "training", 0)
    _at(place, folder, process)
    os.kill(process.pid if rank is None else _pid(place, folder, rank), number)
    ended = _finish(process)
    status = _status(place, folder)
    wrong = [] if ended.code else ["exit 0"]
    wrong += [] if status["status"] == "interrupted" else [f"status {status['status']}: {status['reason']}"]
    said = ended.err.count("everything finished so far is saved")
    wrong += [] if said == 1 else [f"said {said} times how to go on: {ended.err[-300:]}"]
    wrong += _goes_on(place, folder, 2)
    text = f"ended after {ended.seconds:.1f} s, `{status['status']}` ({status['reason']})"
    return Seen(text, 1, int(bool(wrong)), tuple(wrong))


def _status(place: Path, folder: str) -> dict[str, Any]:
    (path,) = place.glob(f"{folder}/runs/default/*/status.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _goes_on(place: Path, folder: str, count: int) -> list[str]:
    """What is wrong once `count` processes have finished the run."""
    ended = _finish(_start(place, folder, count, "training", 0))
    if ended.code:
        return [f"{count} do not go on: exit {ended.code}: {ended.err[-400:]}"]
    wrong = [] if _batches(place / folder) == _batches(place / "whole") else ["other batches"]
    ours, theirs = (_losses(place / one) for one in (folder, "whole"))
    wrong += [] if [step for step, _ in ours] == [step for step, _ in theirs] else ["other steps are logged"]
    differ = max(abs(one - other) for (_, one), (_, other) in zip(ours[-5:], theirs[-5:], strict=True))
    wrong += [] if differ < NATS else [f"losses differ by {differ:.2g} nats"]
    return wrong


def _batches(folder: Path) -> dict[str, str]:
    """sha256 of the batch of every step; two of one step are told by both."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("batches-*.txt")):
        for line in path.read_text().splitlines():
            step, _, digest = line.partition(" ")
            if found.setdefault(step, digest) != digest:
                found[step] = "not the same in every process"
    return found


def _losses(folder: Path) -> list[tuple[int, float]]:
    (path,) = folder.glob("runs/default/*/metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["step"], row["loss"]) for row in rows]


FAMILY = Family("ranks", cases)
