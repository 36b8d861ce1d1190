"""Run a sweep: its jobs in a pool of workers, then the comparison and a list of what did not finish."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from posenc.config.compose import ComposedJob, Jobs, frozen
from posenc.config.overrides import CommandLine, key_of
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.machine import usable_cores
from posenc.report.captions import length
from posenc.results.load import Run, load_runs, run_summary
from posenc.running.jobs import requested_targets, state_of, validated
from posenc.running.run_directory import DIVERGED, FINISHED, LOG
from posenc.running.signals import CODES, SWEEP, setting
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

    0, 1 if anything is not finished, 130 or 143 after a signal, which ends the running jobs and the sweep.
    """
    pool = pool_of(command, line, composed)
    left = [job for job in pool.jobs if job.state == WAITING]
    if composed.n_jobs != 1 and left:
        pool.cores, pool.gpus = usable_cores(), visible_gpus()
        most = jobs_at_once(composed.n_jobs, [job.device for job in left], pool.cores, len(pool.gpus))
        pool.at_once = min(most, len({job.place for job in left}))
    pool.run()
    code = show_sweep(command, composed, pool.jobs)
    return CODES[signal.Signals(pool.received[0])] if pool.received else code


def pool_of(command: str, line: CommandLine, composed: Jobs) -> WorkerPool:
    """Return the jobs; what is finished or diverged is settled and starts no process, which takes seconds."""
    pool = WorkerPool(
        _pool_jobs(command, line, composed.jobs),
        lambda job: state_of(command, job.settings),
        lambda job: losses_text(job.place) if command == "train" else "",
        lock=LOCKS[command],
        fail_fast=fails_fast(composed),
    )
    for job in pool.jobs:
        pool.settle(job, "already finished")
    return pool


def show_sweep(command: str, composed: Jobs, jobs: Sequence[Job]) -> int:
    """Print the comparison and the failures; return 1 if anything is not finished."""
    show_tables([job.place for job in jobs], requested_targets(command, composed.jobs))
    for text in failures(jobs):
        say(text)
    return 1 if any(job.state != FINISHED for job in jobs) else 0


def _pool_jobs(command: str, line: CommandLine, composed: Sequence[ComposedJob]) -> list[Job]:
    from posenc.training.device import resolve_device

    return [
        Job(
            name=f"[{i}/{len(composed)}] {visible(label)}",
            words=job_command(command, line, one),
            place=validated(command, one.settings).directory,
            device=str(resolve_device(str(one.settings["device"]))),
            tokens=one.settings["train"]["tokens"] if command == "train" else None,
            settings=one.settings,
        )
        for i, (one, label) in enumerate(zip(composed, labels_of(composed), strict=True), 1)
    ]


def job_command(command: str, line: CommandLine, job: ComposedJob) -> list[str]:
    """Return the command of one job.

    -P: no module of the working folder takes the place of an installed one. hydra.mode: a preset may ask for
    a sweep, and a job is never one.
    """
    config_dir = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    program = [sys.executable, "-P", "-m", "posenc", command]
    return [*program, *config_dir, *job.overrides, "hydra.mode=RUN"]


def labels_of(jobs: Sequence[ComposedJob]) -> list[str]:
    """Return the overrides in which each job differs from others; of an encoding its name alone."""
    shared = set.intersection(*(set(job.overrides) for job in jobs))
    labels = []
    for job in jobs:
        own = [word for word in job.overrides if word not in shared] or job.overrides[:1]
        labels.append(" ".join(w.partition("=")[2] if key_of(w) == "encoding" else w for w in own))
    return labels


def losses_text(place: Path) -> str:
    """Return `0.5x 1.210, 1x 1.185, 8x 3.651 nats per token; `, or nothing where nothing was measured."""
    losses = run_summary(place).losses
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


def show_tables(places: Sequence[Path], targets: Targets) -> list[Run]:
    """Print the comparison on stdout; return the runs that are on disk.

    Of a run in `targets` only the records of these targets are shown.
    """
    runs = load_runs([path for path in dict.fromkeys(places) if path.is_dir()])
    if not runs:
        return []
    from posenc.report.writers import show_runs
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
    show_runs(runs, sys.stdout)
    return runs
