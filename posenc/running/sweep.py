"""A sweep: its jobs run, one or several at a time, the comparison at the end, and what did not finish."""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from posenc.config.compose import ComposedJob, Jobs
from posenc.config.overrides import CommandLine
from posenc.core.console import clock, say
from posenc.core.errors import UserError
from posenc.core.machine import usable_cores
from posenc.report.failures import FINISHED, failures_lines, sweep_lines
from posenc.report.runs_table import count
from posenc.results.load import Run
from posenc.running.processes import Processes
from posenc.running.signals import CODES
from posenc.running.slots import Slots, how_many, visible_gpus
from posenc.running.sweep_runner import Runner
from posenc.running.sweep_state import AskedTargets
from posenc.running.told import SWEEP, setting
from posenc.running.validated import frozen


@contextmanager
def named_sweep(jobs: Sequence[ComposedJob]) -> Iterator[None]:
    """The sweep's name in the environment: the same jobs have the same one, so trackers group them."""
    listed = "\n".join(frozen(job.settings) for job in jobs)
    name = str(jobs[0].settings.get("experiment_name", "eval"))
    with setting(SWEEP, f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:6]}"):
        yield


def fails_fast(composed: Jobs) -> bool:
    """`sweep.fail_fast`. Raises UserError where another launcher than ours runs the jobs."""
    asked = any(job.settings.get("sweep", {}).get("fail_fast") for job in composed.jobs)
    if asked and composed.launcher is not None:
        hint = "only the launchers basic and joblib can stop what has not begun"
        raise UserError("sweep.fail_fast", "true", "is not for this launcher", hint=hint)
    return bool(asked)


def run_sweep(
    command: str,
    line: CommandLine,
    composed: Jobs,
    places: Sequence[Path],
    stands: Callable[[int], str | None],
    asked: AskedTargets,
) -> int:
    """Run the jobs, show what there is, list what failed. A signal ends the jobs that run and the sweep.

    `places` are the jobs' run directories; `stands(i)` tells whether job i is `finished`, `diverged` or
    `open`, now, or None where that is not known. What is finished or diverged needs no process: starting one
    costs three seconds. Returns 0, 1 if anything is not finished, 130 or 143 after a signal.
    """
    from posenc.training.precision import resolve_device

    jobs = composed.jobs
    runner = Runner(command, line, jobs, places, stands, asked, fails_fast(composed))

    def told(i: int, text: str) -> None:
        say(f"{runner.name(i)}: {text}")

    waiting = [i for i in range(len(jobs)) if not runner.settled(i, told, "already finished")]
    devices = {i: str(resolve_device(str(jobs[i].settings["device"]))) for i in waiting}
    at_once = 1
    if composed.n_jobs != 1 and waiting:
        gpus, cores = visible_gpus(), usable_cores()
        # two jobs of one directory go one after the other
        known = list(devices.values())
        at_once = min(how_many(composed.n_jobs, known, cores, len(gpus)), len({places[i] for i in waiting}))
    began = time.monotonic()
    with Processes() as processes:
        slots = Slots(at_once, cores, gpus) if at_once > 1 else None
        runner.run(processes, waiting, at_once, slots, devices)
    if runner.sweep.trained:
        say(_throughput(runner.ran, at_once, runner.sweep.trained, time.monotonic() - began))
    _show_tables(_runs_of(places), asked)
    ended = runner.ended()
    for text in sweep_lines(ended):
        say(text)
    if processes.received:
        return CODES[signal.Signals(processes.received[0])]
    return 1 if any(job.state != FINISHED for job in ended) else 0


def _throughput(jobs: int, at_once: int, tokens: int, seconds: float) -> str:
    """`4 jobs, 2 at once: 16M tokens in 3:20, 80,000 tokens/s in all`; with start and evaluation."""
    together = f", {at_once} at once" if at_once > 1 else ""
    rate = f"{tokens / max(seconds, 1e-9):,.0f} tokens/s in all, starts and evaluation included"
    return f"\n{jobs} job{'s' * (jobs > 1)}{together}: {count(tokens)} tokens in {clock(seconds)}, {rate}"


def show_sweep(places: Sequence[Path], codes: Sequence[int], asked: AskedTargets) -> None:
    """Of a sweep that another launcher ran: the comparison on stdout, what is not finished on stderr."""
    runs = _runs_of(places)
    _show_tables(runs, asked)
    for text in failures_lines(runs):
        say(text)
    for path in dict.fromkeys(places):
        if not path.is_dir():
            say(f"{path.name}: nothing on disk" + (", see above" if any(codes) else ""))


def _runs_of(places: Sequence[Path]) -> list[Run]:
    from posenc.results.load import load_runs

    return load_runs([path for path in dict.fromkeys(places) if path.is_dir()])


def _show_tables(runs: list[Run], asked: AskedTargets) -> None:
    """The comparison by each of `tables_of` on stdout.

    `asked`: of which (protocol, hash of targets) a run's records are shown; all of them where it has none.
    """
    if not runs:  # no job came so far; what is said of each follows
        return
    from posenc.report.table import show
    from posenc.results.comparison import compare, tables_of
    from posenc.results.records import REFERENCE_PROTOCOL

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
