"""Run the jobs of a sweep as worker processes, some at a time, so that the death of one is its own.

A job is WAITING, RUNNING, or has ended: FINISHED, DIVERGED, INTERRUPTED, NOT_STARTED, FAILED, or `killed by
SIGKILL`. A run that another process works on (the same sweep, started twice) is left for later: by then it
may be finished.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.console import PROGRESS, clock, say
from posenc.core.errors import visible
from posenc.report.captions import millions
from posenc.results.load import last_metrics
from posenc.running.run_directory import DIVERGED, FINISHED, read_status
from posenc.running.run_lock import holder_of, is_held
from posenc.running.signals import CODES, IF_HELD, PARENT, WAIT, to_take_over

WAITING, RUNNING, INTERRUPTED, NOT_STARTED = "waiting", "running", "interrupted", "not started"
FAILED = "failed"
HELD = 75  # exit code of a job that finds its run held; EX_TEMPFAIL of sysexits.h
PAUSE = 0.05  # seconds between two looks at the processes
BETWEEN = 1.0  # seconds between two looks at runs that others hold
STATUS_SECONDS = 10.0  # between two lines on how far a running job is
LAST_LINES = 2.0  # seconds to read on: what a job leaves behind may hold its output open for ever
OUT_OF_MEMORY = "out of memory, if nobody did that: fewer jobs at once, a smaller batch or model"
THREADS, GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


@dataclass
class Job:
    """One job of a sweep and how it stands."""

    name: str  # [3/12] rope seed=0
    words: Sequence[str]  # its command
    place: Path  # its run directory
    device: str = "cpu"
    tokens: int | None = None  # of a training
    settings: dict[str, Any] = field(default_factory=dict)
    state: str = WAITING
    reason: str | None = None
    began: float = 0.0
    trained: int = 0  # tokens before it began
    gpu: str | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=20))  # its last lines
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None

    @property
    def ended(self) -> str:
        """How it stands, with the reason."""
        return visible(self.state + (f", {self.reason}" if self.reason else ""))


class WorkerPool:
    """Run jobs, `at_once` at a time, which share `cores` and `gpus`.

    `state_of(job)` returns `finished`, `diverged` or `open` now, or None where only the exit code tells;
    `losses_of(job)` the losses of a finished one as text. `lock` names the lock that a job takes.
    """

    at_once, cores = 1, 1
    gpus: Sequence[str] = ()

    def __init__(
        self,
        jobs: Sequence[Job],
        state_of: Callable[[Job], str | None],
        losses_of: Callable[[Job], str],
        *,
        lock: str = "run",
        fail_fast: bool = False,
    ) -> None:
        self.jobs, self.state_of, self.losses_of = jobs, state_of, losses_of
        self.lock, self.fail_fast = lock, fail_fast
        self.failed = False
        self.received: list[int] = []  # signals, in order
        self.last_status, self.shown = time.monotonic(), 0

    def run(self) -> None:
        """Run all that wait; signals are passed on to the jobs, and none outlives this call."""
        before: dict[int, Any] = {n: signal.signal(n, self._pass_on) for n in to_take_over()}
        try:
            while self._in(WAITING) or self._in(RUNNING):
                self._step()
        finally:
            for process in self._processes():  # only after an error of our own
                process.terminate()
                process.wait()
            for number, handler in before.items():
                signal.signal(number, handler)

    def settle(self, job: Job, text: str) -> bool:
        """Tell whether a job needs no process, as its run is finished or has diverged; note and show it."""
        state = self.state_of(job)
        if state == FINISHED:
            job.state, job.reason = FINISHED, None
            say(f"{job.name}: {text}")
        elif state == DIVERGED:
            job.state, job.reason = DIVERGED, read_status(job.place).get("reason")
            say(f"{job.name}: diverged before, which is final without --retry")
        return job.state != WAITING

    def _in(self, state: str) -> list[Job]:
        return [job for job in self.jobs if job.state == state]

    def _processes(self) -> list[subprocess.Popen[str]]:
        return [job.process for job in self._in(RUNNING) if job.process is not None]

    def _stops(self) -> bool:
        return bool(self.received) or (self.fail_fast and self.failed)

    def _step(self) -> None:
        """Begin what can begin, note what has ended, say how far the others are, and pause."""
        job = None
        if self._stops():
            for left in self._in(WAITING):
                left.state = NOT_STARTED
        elif len(self._in(RUNNING)) < self.at_once and (job := self._next()) is not None:
            self._start(job)
        for one in self._in(RUNNING):
            if one.process is not None and one.process.poll() is not None:
                self._ended(one, one.process.returncode)
        self._say_status()
        if job is None:
            held = self._in(WAITING) and not self._in(RUNNING)
            time.sleep(BETWEEN if held else PAUSE)

    def _next(self) -> Job | None:
        """Return the first job that can begin; those that another process has ended are settled."""
        busy = {job.place for job in self._in(RUNNING)}  # two jobs of one run go one after the other
        for job in self._in(WAITING):
            if job.place in busy:
                continue
            if is_held(job.place, self.lock):
                if job.reason is None:
                    job.reason = holder_of(job.place, self.lock)
                    say(f"{job.name}: waits for another process ({job.reason})")
            elif not self.settle(job, "finished by another process"):
                return job
        return None

    def _start(self, job: Job) -> None:
        given = self._share(job)
        job.state, job.reason, job.began, job.trained = RUNNING, None, time.time(), tokens_of(job.place)
        job.said.clear()
        say(f"{job.name}: begins" + "".join(f", {key}={value}" for key, value in given.items()))
        own = {IF_HELD: str(HELD), WAIT: "0", PROGRESS: "off", "PYTHONIOENCODING": "utf-8"}
        own[PARENT] = str(os.getpid())
        job.process = process = subprocess.Popen(
            list(job.words),
            env={**os.environ, **given, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip():
                    job.said.append(line.rstrip())
                    say(f"{job.name}: {visible(line.rstrip())}")

        job.reader = threading.Thread(target=read, daemon=True)
        job.reader.start()
        if self.received:  # it came while this one was being started
            process.send_signal(self.received[-1])

    def _share(self, job: Job) -> dict[str, str]:
        """Return the environment that gives a job its threads and, on `cuda`, the least busy GPU."""
        if self.at_once == 1:
            return {}
        given = {} if os.environ.get(THREADS) else {THREADS: str(max(1, self.cores // self.at_once))}
        job.gpu = None
        if job.device == "cuda" and self.gpus:
            used = [other.gpu for other in self._in(RUNNING)]
            job.gpu = min(self.gpus, key=used.count)
            given[GPUS] = job.gpu
        return given

    def _ended(self, job: Job, code: int) -> None:
        """Note how a job ended, by its exit code, its run and its last lines."""
        assert job.reader is not None
        job.reader.join(LAST_LINES)
        if code == HELD:
            job.state = WAITING
            return
        state = self.state_of(job)
        seconds = clock(time.time() - job.began)
        if code == 0 and state in (None, FINISHED):
            job.state = FINISHED
            say(f"{job.name}: finished, {self.losses_of(job)}{seconds}")
            return
        status = read_status(job.place)
        if code in CODES.values() or -code in CODES:  # the latter before it could take the signal over
            job.state, job.reason = INTERRUPTED, "saved as far as it was"
        elif code == 1 and status.get("status") == DIVERGED:
            job.state, job.reason = DIVERGED, status.get("reason")
        elif code < 0:
            job.state = f"killed by {signal.Signals(-code).name}"
            job.reason = OUT_OF_MEMORY if code == -signal.SIGKILL else None
        else:
            errors = [line for line in job.said if line.startswith("error: ")]
            said = errors[-1].removeprefix("error: ") if errors else None
            job.state, job.reason = FAILED, said or f"exit code {code} before it was finished"
        say(f"{job.name}: {job.ended}")
        if self.fail_fast and not self._stops():
            say("sweep.fail_fast: the jobs that have not begun are left, those that run save and stop")
            for process in self._processes():
                process.terminate()
        self.failed = True

    def _say_status(self) -> None:
        """Say every few seconds how far one of the running jobs is, each in its turn."""
        if time.monotonic() - self.last_status < STATUS_SECONDS or not (running := self._in(RUNNING)):
            return
        self.last_status, self.shown = time.monotonic(), self.shown + 1
        job = running[self.shown % len(running)]
        if text := progress_of(job, time.time()):
            over = len(self.jobs) - len(running) - len(self._in(WAITING))
            say(f"{job.name}: {text}; {over} of {len(self.jobs)} jobs done")

    def _pass_on(self, number: int, frame: object) -> None:
        self.received.append(number)
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(number)


def tokens_of(place: Path) -> int:
    """Return the tokens that a run is trained on so far."""
    tokens = last_metrics(place).get("tokens")
    return tokens if isinstance(tokens, int) else 0


def progress_of(job: Job, now: float) -> str:
    """Return `1.2M of 4M tokens, loss 1.310, 2:05 left`, or that it evaluates; nothing before it begins."""
    last, tokens = last_metrics(job.place), tokens_of(job.place)
    if job.tokens is None or tokens >= job.tokens:
        cells = len(list((job.place / "records").glob("[!.]*.json")))
        return f"evaluating, {cells} cells on disk"
    if tokens <= job.trained:
        return ""
    left = (now - job.began) / (tokens - job.trained) * (job.tokens - tokens)
    return f"{millions(tokens)} of {millions(job.tokens)} tokens, loss {last['loss']:.3f}, {clock(left)} left"


def visible_gpus() -> list[str]:
    """Return the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return named[:count] if named else [str(i) for i in range(count)]


def jobs_at_once(n_jobs: int, devices: Sequence[str], cores: int, gpus: int) -> int:
    """Return how many jobs run at once, from `hydra.launcher.n_jobs` and the `devices` they run on.

    -1: one for each GPU, or on a CPU for each core: one thread a job gives the most tokens in all (measured:
    docs/clusters.md).
    """
    if n_jobs > 0:
        return n_jobs
    return cores if all(device == "cpu" for device in devices) else max(1, gpus)
