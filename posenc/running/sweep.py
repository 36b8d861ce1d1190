"""Run a sweep: its jobs as worker processes, then the comparison and a list of what did not finish.

A run that another process works on (the same sweep, started twice) is left for later.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.config.compose import frozen
from posenc.config.overrides import CommandLine
from posenc.core.console import PROGRESS, clock, say
from posenc.core.errors import visible
from posenc.core.machine import free_memory, say_load, threads_for, usable_cores
from posenc.report.captions import length
from posenc.report.runs_table import headline_losses
from posenc.report.writers import show_runs
from posenc.results.load import load_run, load_runs
from posenc.results.schema import REFERENCE_PROTOCOL
from posenc.running.jobs import HELD, CheckedJob, seed_by_seed
from posenc.running.measure import targets_of
from posenc.running.run_directory import DIVERGED, FINISHED, LOG, holder_of, is_held, read_status, run_state
from posenc.running.signals import CODES, PARENT, WAIT, StopFlag

WAITING, RUNNING, FAILED = "waiting", "running", "failed"
INTERRUPTED, NOT_STARTED = "interrupted", "not started"
LOCKS = {"train": "run", "eval": "evaluation"}
PAUSE = 0.05  # seconds between two looks at the processes
BETWEEN = 1.0  # seconds between two looks at runs that others hold
STATUS_SECONDS = 10  # between two lines on how far the running jobs are, in turn
LAST_LINES = 2.0  # seconds to read on: what a job leaves behind may hold its output open for ever
OUT_OF_MEMORY = "out of memory, if nobody did that: fewer jobs at once, a smaller batch or model"
PROCESS, BYTES = 6e8, 40  # memory of a process with torch, and for each weight: values, moments, batches
THREADS, GPUS = "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"


@dataclass
class Job:
    """One job of a sweep and how it stands."""

    name: str  # [3/12] rope seed=0
    words: Sequence[str]  # its command
    place: Path  # its run directory
    device: str = "cpu"
    evaluation: dict[str, Any] | None = None  # a training's; None: only the exit code tells how it ended
    state: str = WAITING
    reason: str | None = None
    began: float = 0.0
    threads: int = 1
    memory: float = 0.0  # bytes it needs, about
    overrides: Sequence[str] = ()
    gpu: str | None = None
    said: deque[str] = field(default_factory=lambda: deque(maxlen=20))  # its last lines
    process: Any = None  # a Popen while it runs
    reader: Any = None  # the thread that reads its output

    def settle(self, finished: str) -> bool:
        """Tell whether it needs no process, as its run is finished or has diverged; note and show it."""
        state = None if self.evaluation is None else run_state(self.place, self.evaluation)
        if state == FINISHED:
            self.state, self.reason = FINISHED, None
            say(f"{self.name}: {finished}")
        elif state == DIVERGED:
            self.state, self.reason = DIVERGED, read_status(self.place).get("reason")
            say(f"{self.name}: diverged before, which is final without --retry")
        return self.state != WAITING

    def end(self, code: int) -> None:
        """Note how it ended: by its exit code, its run and its last lines."""
        status = read_status(self.place)
        if code == 0 and self.is_finished:
            self.state = FINISHED
        elif code in CODES.values() or -code in CODES:  # the latter before it could take the signal over
            self.state, self.reason = INTERRUPTED, "saved as far as it was"
        elif code == 1 and status.get("status") == DIVERGED:
            self.state, self.reason = DIVERGED, status.get("reason")
        elif code < 0:
            self.state = f"killed by {signal.Signals(-code).name}"
            self.reason = OUT_OF_MEMORY if code == -signal.SIGKILL else None
        else:
            errors = [line.removeprefix("error: ") for line in self.said if line.startswith("error: ")]
            self.state = FAILED
            self.reason = errors[-1] if errors else f"exit code {code} before it was finished"
        seconds = clock(time.time() - self.began)
        losses = losses_text(self.place) if self.evaluation is not None else ""
        text = f"finished, {losses}{seconds}" if self.state == FINISHED else self.ended
        say(f"{self.name}: {text}")

    @property
    def is_finished(self) -> bool:
        """Tell whether its run is; of an evaluation the exit code alone tells."""
        return self.evaluation is None or run_state(self.place, self.evaluation) == FINISHED

    @property
    def ended(self) -> str:
        """How it stands, with the reason."""
        return visible(self.state + (f", {self.reason}" if self.reason else ""))


class WorkerPool:
    """Run jobs, `at_once` at a time, on `gpus` if they ask for one; `lock` is the name of what they hold."""

    def __init__(self, jobs: Sequence[Job], *, lock: str = "run", fail_fast: bool = False) -> None:
        self.jobs, self.lock, self.fail_fast = jobs, lock, fail_fast
        self.at_once = 1
        self.gpus: Sequence[str] = ()
        self.stopping = False  # no more jobs begin

    def run(self) -> int:
        """Run all that wait, of which none outlives this call; return the exit code of a signal, or 0."""
        with StopFlag() as stop:
            stop.guarded = True  # the jobs save, and are waited for
            try:
                while self._in(WAITING) or self._in(RUNNING):
                    if stop.received is not None and not self.stopping:
                        self._stop(stop.received)
                    self._step()
            finally:
                for job in self._in(RUNNING):  # only after an error of our own
                    job.process.terminate()
                    job.process.wait()
        return stop.exit_code

    def _in(self, state: str) -> list[Job]:
        return [job for job in self.jobs if job.state == state]

    def _step(self) -> None:
        """Begin what can begin, note what has ended, and pause."""
        job = None
        if self.stopping:
            for left in self._in(WAITING):
                left.state = NOT_STARTED
        elif len(self._in(RUNNING)) < self.at_once and (job := self._next()) is not None:
            self._start(job)
        for one in self._in(RUNNING):
            if (code := one.process.poll()) is not None:
                self._ended(one, code)
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
            elif not job.settle("finished by another process"):
                return job
        return None

    def _start(self, job: Job) -> None:
        given = self._share(job)
        job.reason, job.began = None, time.time()
        job.said.clear()
        say(f"{job.name}: begins" + "".join(f", {key}={value}" for key, value in given.items()))
        seconds = str(STATUS_SECONDS * self.at_once)
        own = {WAIT: "0", PROGRESS: seconds, PARENT: str(os.getpid()), "PYTHONIOENCODING": "utf-8"}
        job.process = subprocess.Popen(
            list(job.words),
            env={**os.environ, **given, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        job.state = RUNNING

        def read() -> None:
            for line in job.process.stdout:
                if line.strip():
                    job.said.append(line.rstrip())
                    say(f"{job.name}: {visible(line.rstrip())}")

        job.reader = threading.Thread(target=read, daemon=True)
        job.reader.start()

    def _share(self, job: Job) -> dict[str, str]:
        """Return the environment that gives a job its threads and, on `cuda`, the least busy GPU."""
        given = {} if os.environ.get(THREADS) else {THREADS: str(job.threads)}
        job.gpu = None
        if job.device == "cuda" and self.gpus:
            used = [other.gpu for other in self._in(RUNNING)]
            job.gpu = min(self.gpus, key=used.count)
            given[GPUS] = job.gpu
        return given

    def _ended(self, job: Job, code: int) -> None:
        job.reader.join(LAST_LINES)
        if code == HELD:
            job.state = WAITING
            return
        job.end(code)
        if self.fail_fast and job.state != FINISHED and not self.stopping:
            say("sweep.fail_fast: the jobs that have not begun are left, those that run save and stop")
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Begin no more jobs, and pass a signal on to those that run."""
        self.stopping = True
        for job in self._in(RUNNING):
            job.process.send_signal(number)


def visible_gpus() -> list[str]:
    """Return the GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(GPUS, "").split(",") if name.strip()]
    return named[:count] if named else [str(i) for i in range(count)]


def jobs_at_once(jobs: Sequence[Job], cores: int, free: float, gpu_jobs: int) -> int:
    """Return how many jobs the machine has room for: by cores and free memory, or `gpu_jobs` on GPUs."""
    by_memory = free // max(job.memory for job in jobs)
    if any(job.device != "cpu" for job in jobs):
        return int(max(1, min(gpu_jobs, by_memory)))
    return int(max(1, min(cores // max(job.threads for job in jobs), by_memory)))


def sweep_name(checked: Sequence[CheckedJob]) -> str:
    """Return the name of a sweep: the same jobs have the same one, so trackers group them."""
    listed = "\n".join(frozen(composed.settings) for composed, _ in checked)
    name = checked[0][0].settings.get("experiment_name", "eval")
    return f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:6]}"


def run_sweep(
    command: str,
    line: CommandLine,
    checked: list[CheckedJob],
    launch: Callable[[Sequence[Job]], int] | None = None,
) -> int:
    """Run the jobs, print the comparison on stdout and the failures on stderr; return the exit code.

    0, 1 if anything is not finished, 130 or 143 after a signal, which ends the running jobs and the sweep.
    What is finished or diverged is settled and starts no process. `launch` runs what is left elsewhere, and
    returns the exit code of a signal, or 0.
    """
    checked = seed_by_seed(checked)
    jobs = jobs_of(command, line, checked)
    left = [job for job in jobs if not job.settle("already finished")]
    received = 0
    if left and launch is not None:
        received = launch(left)
    elif left:
        how = checked[0][0].settings["sweep"]
        pool = WorkerPool(jobs, lock=LOCKS[command], fail_fast=how["fail_fast"])
        pool.gpus = visible_gpus()
        room = jobs_at_once(jobs, usable_cores(), free_memory(), how["slots"] * len(pool.gpus))
        pool.at_once = min(how["jobs"] or room, len({job.place for job in left}))
        if jobs[0].device == "cpu":
            say_load(pool.at_once * int(os.environ.get(THREADS) or jobs[0].threads))
        received = pool.run()
    show_tables(command, checked)
    for text in failures(jobs):
        say(text)
    return received or int(any(job.state != FINISHED for job in jobs))


def jobs_of(command: str, line: CommandLine, checked: Sequence[CheckedJob]) -> list[Job]:
    """Return the jobs of a sweep, each with the command that runs it.

    -P: no module of the working folder takes the place of an installed one. hydra.mode: a preset may ask for
    a sweep, and a job is never one.
    """
    cores, config_dir = usable_cores(), [] if line.config_dir is None else ["--config-dir", line.config_dir]
    program = [sys.executable, "-P", "-m", "posenc", command, *config_dir]
    shared = set.intersection(*(set(composed.overrides) for composed, _ in checked))
    jobs = []
    for i, (one, job) in enumerate(checked, 1):
        own = [word for word in one.overrides if word not in shared] or one.overrides[:1]
        label = " ".join(word.removeprefix("encoding=") for word in own)
        jobs.append(
            Job(
                name=f"[{i}/{len(checked)}] {visible(label)}",
                words=[*program, *one.overrides, "hydra.mode=RUN"],
                place=job.directory,
                device=str(job.device),
                evaluation=job.settings["eval"] if command == "train" else None,
                threads=threads_for(job.shape.weights, cores),
                memory=PROCESS + BYTES * job.shape.weights,
                overrides=one.overrides,
            )
        )
    return jobs


def losses_text(place: Path) -> str:
    """Return `0.5x 1.210, 1x 1.185, 8x 3.651 nats per token; `, or nothing where nothing was measured."""
    losses = headline_losses(load_run(place))
    listed = ", ".join(f"{length(multiple)} {nats:.3f}" for multiple, nats in sorted(losses.items()))
    return f"{listed} nats per token; " if listed else ""


def failures(jobs: Sequence[Job]) -> list[str]:
    """Return a line for every job not finished, with its log, the counts, and what resumes; [] if all are."""
    left = [job for job in jobs if job.state != FINISHED]
    if not left:
        return []
    lines = []
    for job in left:
        log = f" (log: {visible(job.place / LOG)})" if (job.place / LOG).is_file() else ""
        lines.append(f"{job.name}: {job.ended}{log}")
    counts = Counter(job.state for job in jobs)
    lines.append(f"{len(jobs)} jobs: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    if any(job.state != DIVERGED for job in left):
        lines.append("the same command resumes what is not finished")
    if counts[DIVERGED]:
        lines.append("diverged is final; with --retry the same command trains those again")
    return lines


def show_tables(command: str, checked: Sequence[CheckedJob]) -> None:
    """Print the comparison of the runs on stdout; after `posenc eval` only of what it measures."""
    asked: dict[Path, set[tuple[str, str]]] = {}  # (protocol, hash of its targets) by run
    for _, job in checked:
        found = asked.setdefault(job.directory, set())
        if command == "eval":
            found |= targets_of(job)
    runs = load_runs([path for path in asked if path.is_dir()])
    for run in runs if command == "eval" else ():
        targets = asked[run.path]
        targets |= {(REFERENCE_PROTOCOL, targets_hash) for _, targets_hash in targets}
        run.records = [r for r in run.records if (r["protocol"], r["targets_hash"]) in targets]
    if runs:
        show_runs(runs, sys.stdout)
