"""The jobs of a sweep one after the other, each in a process of its own, and the comparison at the end."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from posenc.jobs.compose import CommandLine, Composed
from posenc.jobs.signals import CODES
from posenc.jobs.sweep_state import Asked, Sweep
from posenc.report.live import finished_line
from posenc.report.progress import say

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
    jobs: Sequence[Composed],
    places: Sequence[Path],
    finished: Sequence[bool],
    asked: Asked,
) -> int:
    """Run the jobs, show what there is, list what failed. A signal ends the job that runs and the sweep.

    `places` are the jobs' run directories. Jobs that are `finished` need no process: starting one costs three
    seconds. Returns 0, 1 if a job failed, 130 or 143 after a signal.
    """
    received: list[int] = []
    codes = []
    sweep = Sweep(jobs, places, asked)
    for i in range(len(jobs)):
        if finished[i]:
            sweep.add(i)
    for i, job in enumerate(jobs):
        label = f"[{i + 1}/{len(jobs)}] {' '.join(job.overrides)}"
        if finished[i]:
            say(f"\n{label}: already finished")
        elif not received:
            state = sweep.begin(i, list(finished[i + 1 :]).count(False))
            code = _in_own_process(command, line, job, label, received, state.to_environment())
            codes.append(code)
            losses = sweep.end(i, code)
            if not code:
                say(f"[{i + 1}/{len(jobs)}] {sweep.names[i]}: {finished_line(losses, sweep.seconds[-1])}")
    show_sweep(list(dict.fromkeys(places)), codes, asked)
    if received:
        return CODES[signal.Signals(received[0])]
    return 1 if any(codes) else 0


def _in_own_process(
    command: str, line: CommandLine, job: Composed, label: str, received: list[int], told: Mapping[str, str]
) -> int:
    """One job as a process, so that its death is its own; signals are passed on. Its exit code."""
    say(f"\n{label}")
    elsewhere = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    # -P: no module of the working folder takes the place of an installed one.
    # hydra.mode: a preset may ask for a sweep, and a job is never one.
    words = [sys.executable, "-P", "-m", "posenc", command, *elsewhere, *job.overrides, "hydra.mode=RUN"]
    process = subprocess.Popen(words, env={**os.environ, **told})

    def forward(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        if process.poll() is None:
            process.send_signal(signum)

    before = {signum: signal.signal(signum, forward) for signum in CODES}
    try:
        code = process.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if code:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        say(f"{label} {how}")
    return code


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
