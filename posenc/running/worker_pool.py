"""Run the jobs of a sweep as worker processes, some at a time, so that the death of one is its own.

A job is WAITING, RUNNING, or has ended: FINISHED, DIVERGED, INTERRUPTED, NOT_STARTED, `failed`, or `killed by
SIGKILL`. A run that another process works on (the same sweep, started twice) is left for later: by then it
may be finished.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from posenc.core.console import PROGRESS, clock
from posenc.core.errors import visible
from posenc.results.run_summary import last_metrics
from posenc.running.env_vars import IF_HELD, WAIT
from posenc.running.run_directory import LOG, append_log, log_size, logged_reason, read_status
from posenc.running.run_lock import holder_of, is_held
from posenc.running.run_state import DIVERGED, FINISHED
from posenc.running.signals import CODES, to_take_over

WAITING, RUNNING, INTERRUPTED, NOT_STARTED = "waiting", "running", "interrupted", "not started"
HELD = 75  # exit code of a job that finds its run held; EX_TEMPFAIL of sysexits.h
REFUSALS = 5  # a job that ends with HELD more often, while nobody holds its run, has failed
PAUSE = 0.05  # seconds between two looks at the processes
BETWEEN = 1.0  # seconds between two looks at runs that others hold
LAST_LINES = 2.0  # seconds to read on: what a job leaves behind may hold its output open for ever
LONGEST = 200  # characters of a job's last line
OUT_OF_MEMORY = "out of memory, if nobody did that: fewer jobs at once, a smaller batch or model"
THREADS, GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


@dataclass
class Job:
    """One job of a sweep and how it stands."""

    name: str  # [3/12] rope seed=0
    label: str  # its row: what it differs in from others, but for the seed
    words: Sequence[str]  # its command
    place: Path  # its run directory
    device: str = "cpu"
    steps: int | None = None  # of a training
    settings: dict[str, Any] = field(default_factory=dict)
    state: str = WAITING
    reason: str | None = None
    log: Path | None = None
    began: float = 0.0
    seconds: float | None = None  # that it took
    first_tokens: int = 0  # trained on before this sweep
    tokens: int = 0  # trained on in this sweep
    losses: dict[str, float] = field(default_factory=dict)  # by length (`4x`)
    gpu: str | None = None
    refusals: int = 0
    log_offset: int = 0  # where its own part of the run's log begins
    said: deque[str] = field(default_factory=lambda: deque(maxlen=20))  # its last lines
    process: subprocess.Popen[str] | None = None
    readers: list[threading.Thread] = field(default_factory=list)


class Display(Protocol):
    """What a pool shows of its jobs; called from several threads."""

    def say(self, text: str) -> None: ...

    def begin(self, job: Job, text: str) -> None: ...

    def end(self, job: Job, text: str) -> None: ...

    def refresh(self) -> None: ...


class WorkerPool:
    """Run jobs, `at_once` at a time, which share `cores` and `gpus`.

    `state_of(job)` returns `finished`, `diverged` or `open` now, or None where only the exit code tells;
    `losses_of(job)` the losses of a finished one, by length. `lock` names the lock that a job takes.
    """

    at_once, cores = 1, 1
    gpus: Sequence[str] = ()

    def __init__(
        self,
        jobs: Sequence[Job],
        display: Display,
        state_of: Callable[[Job], str | None],
        losses_of: Callable[[Job], dict[str, float]],
        *,
        lock: str = "run",
        fail_fast: bool = False,
    ) -> None:
        self.jobs, self.display, self.state_of, self.losses_of = jobs, display, state_of, losses_of
        self.lock, self.fail_fast = lock, fail_fast
        self.failed = False
        self.received: list[int] = []  # signals, in order

    def run(self) -> None:
        """Run all that wait; signals are passed on to the jobs, and none outlives this call."""
        before: dict[int, Any] = {n: signal.signal(n, self._pass_on) for n in to_take_over()}
        try:
            self._run()
        finally:
            for job in self.running():  # only after an error of our own
                _process(job).terminate()
            for job in self.running():
                _process(job).wait()
            for number, handler in before.items():
                signal.signal(number, handler)

    def running(self) -> list[Job]:
        """Return the jobs that run now."""
        return [job for job in self.jobs if job.state == RUNNING]

    def _waiting(self) -> list[Job]:
        return [job for job in self.jobs if job.state == WAITING]

    def _stops(self) -> bool:
        return bool(self.received) or (self.fail_fast and self.failed)

    def _run(self) -> None:
        look = 0.0  # when to look again for a job that can begin
        while True:
            while not self._stops() and len(self.running()) < self.at_once and time.monotonic() >= look:
                job = self._next()
                if job is None:
                    look = time.monotonic() + BETWEEN
                else:
                    self._start(job)
            if self._stops():
                for job in self._waiting():
                    job.state = NOT_STARTED
            if not self.running():
                if not self._waiting():
                    return
                self._say_held()
            for job in self.running():
                if _process(job).poll() is not None:
                    self._ended(job)
                    look = 0.0
            self.display.refresh()
            if self.running() or self._waiting():
                time.sleep(PAUSE)

    def _next(self) -> Job | None:
        """Return the first job that can begin; those that another process has ended are settled."""
        busy = {job.place for job in self.running()}  # two jobs of one run go one after the other
        for job in self._waiting():
            if job.place in busy or self.settle(job, "finished by another process"):
                continue
            if not is_held(job.place, self.lock):
                return job
        return None

    def settle(self, job: Job, text: str) -> bool:
        """Tell whether a job needs no process, as its run is finished or has diverged; note and show it."""
        state = self.state_of(job)
        if state == FINISHED:
            job.state, job.losses = FINISHED, self.losses_of(job)
            self.display.end(job, text)
        elif state == DIVERGED:
            self._diverged(job)
            self.display.end(job, "diverged before, which is final without --retry")
        return job.state != WAITING

    def _say_held(self) -> None:
        fresh = [job for job in self._waiting() if job.reason is None]
        for job in fresh:
            job.reason = holder_of(job.place, self.lock)
        if fresh:
            held = ", ".join(f"{job.name} ({job.reason})" for job in fresh)
            self.display.say(f"waiting for other processes to end: {held}")

    def _start(self, job: Job) -> None:
        given = self._share(job)
        job.state, job.reason, job.began = RUNNING, None, time.time()
        job.first_tokens = tokens_of(job.place)
        job.log_offset = log_size(job.place)
        job.said.clear()
        self.display.begin(job, "begins" + "".join(f", {key}={value}" for key, value in given.items()))
        own = {IF_HELD: str(HELD), WAIT: "0", PROGRESS: "off", "PYTHONIOENCODING": "utf-8"}
        job.process = subprocess.Popen(
            list(job.words),
            env={**os.environ, **given, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )

        def line(text: str) -> None:
            job.said.append(text)
            if text.strip():
                self.display.say(f"{job.name}: {visible(text)}")

        job.readers = [_reader(job.process.stderr, line), _reader(job.process.stdout, _print)]
        if self.received:  # it came while this one was being started
            job.process.send_signal(self.received[-1])

    def _share(self, job: Job) -> dict[str, str]:
        """Return the environment that gives a job its threads and, on `cuda`, the least busy GPU."""
        if self.at_once == 1:
            return {}
        given = {} if os.environ.get(THREADS) else {THREADS: str(max(1, self.cores // self.at_once))}
        job.gpu = None
        if job.device == "cuda" and self.gpus:
            used = [other.gpu for other in self.running()]
            job.gpu = min(self.gpus, key=used.count)
            given[GPUS] = job.gpu
        return given

    def _ended(self, job: Job) -> None:
        code = _process(job).returncode
        for reader in job.readers:
            reader.join(LAST_LINES)
        job.process = None
        if code == HELD:
            job.refusals += not is_held(job.place, self.lock)  # while somebody works on it, it may wait
            if job.refusals <= REFUSALS:
                job.state = WAITING
                self.display.end(job, "another process works on it; comes again later")
                return
        state = self.state_of(job)
        if state is not None and code == 1 and read_status(job.place).get("status") == DIVERGED:
            state = DIVERGED  # also with --retry, which asks about what was before
        job.tokens = max(0, tokens_of(job.place) - job.first_tokens)
        if code == 0 and state in (None, FINISHED):
            job.state, job.losses, job.seconds = FINISHED, self.losses_of(job), time.time() - job.began
            self.display.end(job, _finished_text(job))
            return
        self._not_finished(job, code, state)
        self.display.end(job, visible(job.state + (f", {job.reason}" if job.reason else "")))
        if not self._stops():
            self.failed = True
            if self.fail_fast:
                self.display.say(
                    "sweep.fail_fast: the jobs that have not begun are left, those that run save and stop"
                )
                for other in self.running():
                    _process(other).terminate()

    def _not_finished(self, job: Job, code: int, state: str | None) -> None:
        """Note how a job ended, by its exit code and its run; the run's log says at least as much."""
        if code in CODES.values() or -code in CODES:  # the latter before it could take the signal over
            job.state, job.reason, job.log = INTERRUPTED, "saved as far as it was", _log(job.place)
            return
        if state == DIVERGED:
            self._diverged(job)
            return
        own = logged_reason(job.place, job.log_offset)
        if code >= 0 and own is not None:
            job.state, job.reason, job.log = "failed", own, _log(job.place)
            return
        if code < 0:
            job.state, job.reason = f"killed by {_signal(-code)}", None
            if code == -signal.SIGKILL:
                job.reason = OUT_OF_MEMORY
        else:
            last = job.said[-1].strip()[:LONGEST] + "; " if job.said else ""
            job.state, job.reason = "failed", f"{last}exit code {code} before it was finished"
        if not job.place.is_dir():
            return
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {job.name}\n"
        text += "".join(f"  {visible(line)}\n" for line in job.said)
        try:
            append_log(job.place, text, ", ".join(filter(None, (job.state, job.reason))))
        except OSError as error:
            no_log = f"its log cannot be written: {error.strerror or error}"
            job.reason = "; ".join(filter(None, (job.reason, no_log)))
        else:
            job.log = _log(job.place)

    def _diverged(self, job: Job) -> None:
        reason = read_status(job.place).get("reason")
        job.state, job.log = DIVERGED, _log(job.place)
        job.reason = reason if isinstance(reason, str) else None

    def _pass_on(self, number: int, frame: object) -> None:
        self.received.append(number)
        for job in self.running():
            if job.process is not None and job.process.poll() is None:
                job.process.send_signal(number)


def _process(job: Job) -> subprocess.Popen[str]:
    assert job.process is not None
    return job.process


def tokens_of(place: Path) -> int:
    """Return the tokens that a run is trained on so far."""
    tokens = last_metrics(place).get("tokens")
    return tokens if isinstance(tokens, int) else 0


def _finished_text(job: Job) -> str:
    """Return `0.5x 1.210, 1x 1.185, 8x 3.651 nats per token; 2:41`."""
    losses = ", ".join(f"{column} {value:.3f}" for column, value in job.losses.items())
    return "; ".join(([f"{losses} nats per token"] if losses else []) + [clock(job.seconds or 0)])


def _log(place: Path) -> Path | None:
    return place / LOG if (place / LOG).is_file() else None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _reader(stream: IO[str] | None, line: Callable[[str], None]) -> threading.Thread:
    """Call `line` with every line of a stream, in a thread."""
    assert stream is not None

    def read() -> None:
        for text in stream:
            try:
                line(text.rstrip("\r\n"))
            except (OSError, ValueError):  # nobody reads ours: the job goes on
                continue

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _print(line: str) -> None:
    try:
        print(line, file=sys.stdout, flush=True)
    except UnicodeEncodeError:
        print(ascii(line)[1:-1], file=sys.stdout, flush=True)


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
