"""The jobs of a command line: which apply, which are one run, what each asks for, how each stands."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from posenc.config.compose import ComposedJob, Jobs
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.report.failures import DIVERGED, FINISHED
from posenc.running.told import RETRY
from posenc.running.validated import validated


def applicable(command: str, composed: Jobs) -> Jobs:
    """The jobs, every one validated. Raises UserError for the first that is wrong.

    In a sweep an extension that is not for a run's encoding is left out, and named; unless nothing is left.
    """
    from posenc.evaluation.extensions import NotForThisEncodingError

    count, kept, refused = len(composed.jobs), [], []
    for number, job in enumerate(composed.jobs, 1):
        try:
            checked = validated(command, job.settings)
            if count > 1:  # each reads its own documents: all of them at once may be gigabytes
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


def asked_of(command: str, jobs: list[ComposedJob]) -> dict[Path, set[tuple[str, str]]]:
    """What the jobs of an evaluation measure, by run; a training shows whatever its runs have."""
    if command != "eval":
        return {}
    from posenc.running.eval_run import asked_targets

    found: dict[Path, set[tuple[str, str]]] = {}
    for job in jobs:
        validated_job = validated("eval", job.settings)
        found.setdefault(validated_job.directory, set()).update(asked_targets(validated_job))
    return found


def each_once(composed: Jobs) -> Jobs:
    """Of jobs that are one run and ask for the same evaluation the first alone; the others are named."""
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


def stands(command: str, jobs: list[ComposedJob], i: int) -> str | None:
    """`finished`, `diverged` (for good) or `open`; None for an evaluation, whose own cells tell."""
    if command != "train":
        return None
    from posenc.running.run_directory import read_status
    from posenc.running.standing import is_finished

    job = validated("train", jobs[i].settings)
    if RETRY not in os.environ and read_status(job.directory).get("status") == DIVERGED:
        return DIVERGED
    return FINISHED if is_finished(job) else "open"
