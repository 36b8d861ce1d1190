"""The jobs of a sweep, one or several at a time, each a process of its own, and the comparison at the end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from posenc.jobs.compose import CommandLine, Composed, Jobs
from posenc.jobs.processes import Processes
from posenc.jobs.signals import CODES
from posenc.jobs.slots import Slots, how_many, usable_cores, visible_gpus
from posenc.jobs.sweep_state import Asked, Sweep
from posenc.report.live import clock, finished_line
from posenc.report.progress import say
from posenc.report.runs_table import count
from posenc.report.several import Several

SWEEP = "POSENC_SWEEP"  # environment: the sweep's name, set for the process of each of its jobs


@contextmanager
def named_sweep(jobs: Sequence[Composed]) -> Iterator[None]:
    """The sweep's name in the environment: the same jobs have the same one, so trackers group them."""
    listed = json.dumps([job.settings for job in jobs], sort_keys=True)
    name = str(jobs[0].settings.get("experiment_name", "eval"))
    os.environ[SWEEP] = f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:6]}"
    try:
        yield
    finally:
        del os.environ[SWEEP]


def run_sweep(
    command: str,
    line: CommandLine,
    composed: Jobs,
    places: Sequence[Path],
    finished: Sequence[bool],
    asked: Asked,
) -> int:
    """Run the jobs, show what there is, list what failed. A signal ends the jobs that run and the sweep.

    `places` are the jobs' run directories. Jobs that are `finished` need no process: starting one costs three
    seconds. Returns 0, 1 if a job failed, 130 or 143 after a signal.
    """
    from posenc.training.precision import resolve_device

    jobs = composed.jobs
    runner = _Runner(command, line, jobs, places, asked)
    for i in range(len(jobs)):
        if finished[i]:
            runner.sweep.add(i)
            say(f"{runner.label(i)}: already finished")
    waiting = [i for i in range(len(jobs)) if not finished[i]]
    devices = [str(resolve_device(str(jobs[i].settings["device"]))) for i in waiting]
    at_once = 1
    if composed.n_jobs != 1 and waiting:
        gpus, cores = visible_gpus(), usable_cores()
        # two jobs of one directory go one after the other
        at_once = min(how_many(composed.n_jobs, devices, cores, len(gpus)), len({places[i] for i in waiting}))
    began = time.monotonic()
    with Processes() as processes:
        if at_once > 1:
            slots = Slots(at_once, cores, gpus)
            runner.several(processes, waiting, at_once, slots, dict(zip(waiting, devices, strict=True)))
        else:
            runner.one_by_one(processes, waiting)
    if runner.sweep.trained:
        say(_throughput(len(runner.codes), at_once, runner.sweep.trained, time.monotonic() - began))
    show_sweep(list(dict.fromkeys(places)), runner.codes, asked)
    if processes.received:
        return CODES[signal.Signals(processes.received[0])]
    return 1 if any(runner.codes) else 0


class _Runner:
    """The jobs of a sweep, and the exit codes of those that have run."""

    def __init__(
        self, command: str, line: CommandLine, jobs: Sequence[Composed], places: Sequence[Path], asked: Asked
    ) -> None:
        self.command, self.line, self.jobs, self.places = command, line, jobs, places
        self.sweep = Sweep(jobs, places, asked)
        self.codes: list[int] = []

    def label(self, i: int) -> str:
        """`[1/4] encoding=rope seed=0`."""
        told = [word for word in self.jobs[i].overrides if not word.startswith(("hydra.", "hydra/"))]
        return f"[{i + 1}/{len(self.jobs)}] {' '.join(told)}"

    def words(self, i: int) -> list[str]:
        """The command of one job."""
        elsewhere = [] if self.line.config_dir is None else ["--config-dir", self.line.config_dir]
        # -P: no module of the working folder takes the place of an installed one.
        # hydra.mode: a preset may ask for a sweep, and a job is never one.
        program = [sys.executable, "-P", "-m", "posenc", self.command]
        return [*program, *elsewhere, *self.jobs[i].overrides, "hydra.mode=RUN"]

    def one_by_one(self, processes: Processes, waiting: Sequence[int]) -> None:
        """Each draws on the terminal itself."""
        for number, i in enumerate(waiting, 1):
            if processes.received:
                return
            say(f"\n{self.label(i)}")
            state = self.sweep.begin(i, len(waiting) - number)
            processes.start(i, self.words(i), {**os.environ, **state.to_environment()})
            _, code = processes.next_ended()
            name = f"[{i + 1}/{len(self.jobs)}] {self.sweep.names[i]}:"
            say(f"{self.label(i) if code else name} {self.ended(i, code)}")

    def several(
        self, processes: Processes, waiting: list[int], at_once: int, slots: Slots, devices: Mapping[int, str]
    ) -> None:
        """As soon as one ends the next begins; what they say is put together (posenc.report.several)."""
        waiting = list(waiting)
        running: list[int] = []
        shown = Several(
            self.sweep.names,
            at_once,
            state=lambda: self.sweep.state(0, len(waiting)),
            left=lambda: self.sweep.left(len(waiting), at_once),
            over=lambda: self.sweep.over,
            pace=self.sweep.pace,
        )
        with shown:
            while True:
                while len(running) < at_once and not processes.received:
                    busy = {self.places[i] for i in running}
                    free = [i for i in waiting if self.places[i] not in busy]
                    if not free:
                        break
                    i = free[0]
                    waiting.remove(i)
                    running.append(i)
                    given = slots.take(i, devices[i])
                    self.sweep.begin(i, len(waiting))
                    shown.begin(i, "begins" + "".join(f", {key}={value}" for key, value in given.items()))
                    environment = {**os.environ, **given, **shown.environment}
                    processes.start(i, self.words(i), environment, partial(shown.line, i))
                if not running:
                    return
                i, code = processes.next_ended()
                running.remove(i)
                slots.give_back(i)
                shown.end(i, self.ended(i, code))

    def ended(self, i: int, code: int) -> str:
        """Job i has run: what is to be said of it."""
        self.codes.append(code)
        losses = self.sweep.end(i, code)
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}" if code else finished_line(losses, self.sweep.seconds[-1])


def _throughput(jobs: int, at_once: int, tokens: int, seconds: float) -> str:
    """`4 jobs, 2 at once: 16M tokens in 3:20, 80,000 tokens/s in all`; with start and evaluation."""
    together = f", {at_once} at once" if at_once > 1 else ""
    rate = f"{tokens / max(seconds, 1e-9):,.0f} tokens/s in all, starts and evaluation included"
    return f"\n{jobs} job{'s' * (jobs > 1)}{together}: {count(tokens)} tokens in {clock(seconds)}, {rate}"


def show_sweep(directories: Sequence[Path], codes: Sequence[int], asked: Asked) -> None:
    """The comparison by each of `tables_of` on stdout, every run that is not finished on stderr.

    `asked`: of which (protocol, hash of targets) a run's records are shown; all of them where it has none.
    """
    from posenc.report.failures import failures_lines
    from posenc.report.table import show
    from posenc.results.comparison import compare, tables_of
    from posenc.results.load import load_runs
    from posenc.results.records import REFERENCE_PROTOCOL

    runs = load_runs([path for path in directories if path.is_dir()])
    for run in runs:
        if run.path in asked:
            wanted = asked[run.path]
            hashes = {targets for _, targets in wanted}
            run.records = [
                record
                for record in run.records
                if (record["protocol"], record["targets_hash"]) in wanted
                or (record["protocol"] == REFERENCE_PROTOCOL and record["targets_hash"] in hashes)
            ]
    for number, protocol in enumerate(tables_of(runs)):
        if number:
            print()
        # a sweep may well vary what a ranking must share (T, say): then the column says so
        show([compare(runs, protocol, "nats", True)], "table", sys.stdout)
    for text in failures_lines(runs):
        say(text)
    for path in directories:
        if not path.is_dir():
            say(f"{path.name}: nothing on disk" + (", see above" if any(codes) else ""))
