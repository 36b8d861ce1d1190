"""Run a sweep: its jobs in a pool of workers, then the comparison and a list of what did not finish."""

from __future__ import annotations

import hashlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posenc.config.compose import ComposedJob, Jobs, frozen
from posenc.config.overrides import CommandLine, key_of
from posenc.core.console import clock, say
from posenc.core.errors import UserError, visible
from posenc.core.machine import usable_cores
from posenc.results.load import Run, load_run, load_runs
from posenc.results.run_summary import losses_by_multiple
from posenc.results.schema import HEADLINE
from posenc.results.settings import spoken_name
from posenc.running.env_vars import SWEEP, setting
from posenc.running.jobs import requested_targets, state_of, validated
from posenc.running.run_state import DIVERGED, FINISHED
from posenc.running.signals import CODES
from posenc.running.sweep_display import SweepDisplay
from posenc.running.worker_pool import WAITING, Job, WorkerPool, jobs_at_once, visible_gpus

Targets = Mapping[Path, set[tuple[str, str]]]  # (protocol, hash of targets) that were asked for, by run
LOCKS = {"train": "run", "eval": "evaluation"}


@contextmanager
def named_sweep(jobs: Sequence[ComposedJob]) -> Iterator[None]:
    """Set the sweep's name in the environment: the same jobs have the same one, so trackers group them."""
    listed = "\n".join(frozen(job.settings) for job in jobs)
    name = str(jobs[0].settings.get("experiment_name", "eval"))
    with setting(SWEEP, f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:6]}"):
        yield


def fails_fast(composed: Jobs) -> bool:
    """Return `sweep.fail_fast`. Raises UserError where another launcher than posenc's runs the jobs."""
    asked = any(job.settings.get("sweep", {}).get("fail_fast") for job in composed.jobs)
    if asked and composed.launcher is not None:
        hint = "only the launchers basic and joblib can stop what has not begun"
        raise UserError("sweep.fail_fast", "true", "is not for this launcher", hint=hint)
    return bool(asked)


def run_sweep(command: str, line: CommandLine, composed: Jobs) -> int:
    """Run the jobs, print the comparison on stdout and the failures on stderr; return the exit code.

    0, 1 if anything is not finished, 130 or 143 after a signal, which ends the running jobs and the sweep. No
    process is started for what is finished or diverged: that would take three seconds each.
    """
    targets = requested_targets(command, composed.jobs)
    jobs = _pool_jobs(command, line, composed.jobs)
    display = SweepDisplay(jobs)
    pool = WorkerPool(
        jobs,
        display,
        lambda job: state_of(command, job.settings),
        lambda job: _losses(job, targets),
        lock=LOCKS[command],
        fail_fast=fails_fast(composed),
    )
    began = time.monotonic()
    with display:
        for job in jobs:
            pool.settle(job, "already finished")
        left = [job for job in jobs if job.state == WAITING]
        if composed.n_jobs != 1 and left:
            pool.cores, pool.gpus = usable_cores(), visible_gpus()
            most = jobs_at_once(composed.n_jobs, [job.device for job in left], pool.cores, len(pool.gpus))
            pool.at_once = display.at_once = min(most, len({job.place for job in left}))
        pool.run()
    if sum(job.tokens for job in jobs):
        say(throughput(jobs, pool.at_once, time.monotonic() - began))
    show_tables([job.place for job in jobs], targets)
    for text in failures(jobs):
        say(text)
    if pool.received:
        return CODES[signal.Signals(pool.received[0])]
    return 1 if any(job.state != FINISHED for job in jobs) else 0


def _pool_jobs(command: str, line: CommandLine, composed: Sequence[ComposedJob]) -> list[Job]:
    from posenc.training.precision import resolve_device

    jobs: list[Job] = []
    labels, names = labels_of(composed), labels_of(composed, but=())
    for i, one in enumerate(composed):
        job = validated(command, one.settings)
        jobs.append(
            Job(
                name=f"[{i + 1}/{len(composed)}] {visible(names[i])}",
                label=labels[i],
                words=job_command(command, line, one),
                place=job.directory,
                device=str(resolve_device(str(one.settings["device"]))),
                steps=getattr(job, "steps", None),
                settings=one.settings,
            )
        )
    return jobs


def job_command(command: str, line: CommandLine, job: ComposedJob) -> list[str]:
    """Return the command of one job.

    -P: no module of the working folder takes the place of an installed one. hydra.mode: a preset may ask for
    a sweep, and a job is never one.
    """
    config_dir = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    program = [sys.executable, "-P", "-m", "posenc", command]
    return [*program, *config_dir, *job.overrides, "hydra.mode=RUN"]


def labels_of(jobs: Sequence[ComposedJob], but: Sequence[str] = ("seed",)) -> list[str]:
    """Return the settings in which each job differs from others, some left out."""
    given = [{key_of(o): o.partition("=")[2] for o in job.overrides} for job in jobs]
    keys = dict.fromkeys(key for one in given for key in one)
    telling = [key for key in keys if key not in but and len({one.get(key) for one in given}) > 1]
    return [_label(one, telling, job.settings) for one, job in zip(given, jobs, strict=True)]


def _label(given: Mapping[str, str], telling: Sequence[str], settings: Mapping[str, Any]) -> str:
    words = []
    for key in telling:
        if key in given:
            value = Path(given[key]).name if key == "run" else given[key]
            words.append(value if key in ("encoding", "run") else f"{key}={value}")
    own = spoken_name(settings.get("encoding")) or Path(str(settings.get("run", ""))).name
    return " ".join(words) or own


def _losses(job: Job, targets: Targets) -> dict[str, float]:
    """Return a job's losses by length, by fixed-target or the first protocol that was measured instead."""
    from posenc.report.captions import length

    settings, run, hashes = job.settings, load_run(job.place), targets.get(job.place)
    extend = (settings.get("extend") or {}).get("name", "none")
    records = [
        record
        for record in run.records
        if (record["extend"] or {}).get("name", "none") == extend
        and (hashes is None or (record["protocol"], record["targets_hash"]) in hashes)
    ]
    protocols = [record["protocol"] for record in records]
    protocol = HEADLINE if HEADLINE in protocols else next(iter(protocols), None)
    kept: list[Any] = [record for record in records if record["protocol"] == protocol]
    elsewhere = bool(settings.get("data")) and "run" in settings  # measured on text that was asked for
    losses = losses_by_multiple(kept, {} if elsewhere else run.facts or {})
    return {length(multiple): nats for multiple, nats in sorted(losses.items())}


def throughput(jobs: Sequence[Job], at_once: int, seconds: float) -> str:
    """Return `4 jobs, 2 at once: 16M tokens in 3:20, 80,000 tokens/s in all, ...`."""
    from posenc.report.captions import millions

    tokens, ran = sum(job.tokens for job in jobs), sum(job.began > 0 for job in jobs)
    together = f", {at_once} at once" if at_once > 1 else ""
    rate = f"{tokens / max(seconds, 1e-9):,.0f} tokens/s in all, starts and evaluation included"
    return f"\n{ran} job{'s' * (ran > 1)}{together}: {millions(tokens)} tokens in {clock(seconds)}, {rate}"


def failures(jobs: Sequence[Job]) -> list[str]:
    """Return a line for every job not finished, its log, the counts, and what to do; [] if all are."""
    left = [job for job in jobs if job.state != FINISHED]
    if not left:
        return []
    lines = []
    for job in left:
        lines.append(f"{job.name}: {job.state}" + (f", {job.reason}" if job.reason else ""))
        if job.log is not None:
            lines.append(f"  log: {job.log}")
    counts = Counter(job.state for job in jobs)
    several = f"{len(jobs)} job{'s' * (len(jobs) > 1)}"
    lines.append(f"{several}: " + ", ".join(f"{n} {state}" for state, n in counts.items()))
    if any(job.state != DIVERGED for job in left):
        lines.append("the same command goes on with what is not finished")
    if counts[DIVERGED]:
        lines.append("diverged is final; with --retry the same command trains those again from the start")
    return [visible(line) for line in lines]


def show_tables(places: Sequence[Path], targets: Targets) -> list[Run]:
    """Print the comparison by each of `tables_of` on stdout; return the runs that are on disk.

    Of a run in `targets` only the records of these targets are shown.
    """
    runs = load_runs([path for path in dict.fromkeys(places) if path.is_dir()])
    if not runs:
        return []
    from posenc.report.writers import show
    from posenc.results.comparison import compare, tables_of
    from posenc.results.schema import REFERENCE_PROTOCOL

    for run in runs:
        if run.path in targets:
            asked = targets[run.path]
            hashes = {one for _, one in asked}
            run.records = [
                record
                for record in run.records
                if (record["protocol"], record["targets_hash"]) in asked
                or (record["protocol"] == REFERENCE_PROTOCOL and record["targets_hash"] in hashes)
            ]
    for number, protocol in enumerate(tables_of(runs)):
        if number:
            print()
        # a sweep may vary what a ranking must share (T, say): then the column says so
        show([compare(runs, protocol, "nats", True)], "table", sys.stdout)
    return runs
