"""Validate the jobs of a command: which apply, which are the same run, where each stands."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from posenc.config.compose import ComposedJob, Jobs, frozen
from posenc.core.console import say
from posenc.core.errors import UserError, visible

if TYPE_CHECKING:
    from posenc.running.eval_job import EvalJob
    from posenc.running.train_job import TrainJob


@overload
def validated(command: Literal["train"], settings: dict[str, Any]) -> TrainJob: ...


@overload
def validated(command: Literal["eval"], settings: dict[str, Any]) -> EvalJob: ...


@overload
def validated(command: str, settings: dict[str, Any]) -> TrainJob | EvalJob: ...


def validated(command: str, settings: dict[str, Any]) -> TrainJob | EvalJob:
    """Return the validated job of these settings, validated once in a process. Raises UserError."""
    return _validated(command, frozen(settings))


@functools.cache
def _validated(command: str, frozen_settings: str) -> TrainJob | EvalJob:
    settings = json.loads(frozen_settings)
    if command == "train":
        from posenc.running.train_job import train_job

        return train_job(settings)
    from posenc.running.eval_job import eval_job

    return eval_job(settings)


def applicable(command: str, composed: Jobs) -> Jobs:
    """Return the jobs, every one validated. Raises UserError for the first that is wrong.

    In a sweep an extension that does not apply to a run's encoding is left out and named, unless all are.
    """
    from posenc.evaluation.extensions import NotForThisEncodingError

    count, kept, refused = len(composed.jobs), [], []
    for number, job in enumerate(composed.jobs, 1):
        try:
            checked = validated(command, job.settings)
            if count > 1:  # the documents of all jobs at once may be gigabytes
                checked.facts.loaded = None
            kept.append(job)
        except NotForThisEncodingError as error:
            if count == 1:
                raise
            refused.append((job.settings["run"], error))
        except UserError as error:
            where = f"in job {number} of {count} ({' '.join(job.overrides)})"
            raise error.within(where) if count > 1 else error from None
    if not kept:
        raise refused[0][1]
    for run in dict.fromkeys(run for run, _ in refused):
        say(f"{run}: left out, as they do not apply:")
        for reason in (reason for of, reason in refused if of == run):
            say(f"  {reason.value}: {reason.problem}")
    return dataclasses.replace(composed, jobs=kept)


def each_once(composed: Jobs) -> Jobs:
    """Return the first of all training jobs that are one run and ask for one evaluation; name the others."""
    first: dict[str, int] = {}
    kept = []
    for i, job in enumerate(composed.jobs):
        run = validated("train", job.settings)
        same = first.setdefault(json.dumps([str(run.directory.parent), run.hash, run.settings["eval"]]), i)
        if same == i:
            kept.append(job)
            continue
        other = composed.jobs[same].overrides
        keys = dict.fromkeys(word.partition("=")[0] for word in sorted(set(job.overrides) ^ set(other)))
        say(f"{visible(' '.join(job.overrides))}: the same run as {visible(' '.join(other))}; done once")
        say(f"  what they differ in defines no run, or comes to the same: {visible(', '.join(keys))}")
    return dataclasses.replace(composed, jobs=kept)


def requested_targets(command: str, jobs: list[ComposedJob]) -> dict[Path, set[tuple[str, str]]]:
    """Return the (protocol, hash of its targets) that an evaluation measures, by run; {} for a training."""
    if command != "eval":
        return {}
    from posenc.running.eval_run import targets_of

    found: dict[Path, set[tuple[str, str]]] = {}
    for job in jobs:
        checked = validated("eval", job.settings)
        found.setdefault(checked.directory, set()).update(targets_of(checked))
    return found


def state_of(command: str, settings: dict[str, Any]) -> str | None:
    """Return `finished`, `diverged` (for good) or `open`; None for an evaluation: its cells tell."""
    if command != "train":
        return None
    from posenc.running.run_state import run_state

    return run_state(validated("train", settings))
