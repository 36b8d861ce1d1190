"""Tell how a run stands before a command continues it: finished, diverged, or open."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from posenc.core.errors import RunError
from posenc.results.load import load_run
from posenc.results.store import LARGEST_CONFIG, read_config, read_file
from posenc.running import run_directory as folder
from posenc.running.env_vars import RETRY
from posenc.running.train_job import TrainJob

FINISHED, DIVERGED, OPEN = "finished", "diverged", "open"


def is_finished(job: TrainJob) -> bool:
    """Tell whether the run is trained, and evaluated as this job asks."""
    if not _is_whole(job.directory):
        return False
    try:
        stored = read_config(job.directory) or {}
    except (OSError, ValueError, RecursionError):
        return False
    return bool(stored.get("eval") == job.settings["eval"])


def run_state(job: TrainJob) -> str:
    """Return FINISHED, DIVERGED (final without --retry) or OPEN."""
    if RETRY not in os.environ and folder.read_status(job.directory).get("status") == DIVERGED:
        return DIVERGED
    return FINISHED if is_finished(job) else OPEN


def is_done(job: TrainJob) -> bool:
    """Tell whether nothing is left to do. Raises RunError for a run that diverged, without --retry."""
    state = run_state(job)
    if state == DIVERGED:
        raise RunError(
            f"this run diverged before: {folder.read_status(job.directory).get('reason')}",
            hint="try a smaller train.lr or another seed; --retry trains it again, from the start",
        )
    return state == FINISHED


def finished_config(directory: Path) -> str | None:
    """Return the text of config.yaml of a run that some command has finished; None of any other."""
    if not _is_whole(directory):
        return None
    try:
        text = read_file(directory, "config.yaml", LARGEST_CONFIG)
    except (OSError, ValueError):
        return None
    return None if text is None else text.decode("utf-8", "replace")


def write_end(directory: Path, before: str | None, status: str, reason: str) -> None:
    """Write how an attempt ended that did not finish; a run finished `before`, by its config, stays so."""
    if before is None:
        folder.write_status(directory, status, reason=reason)
    else:
        folder.write_config(directory, before)
        folder.write_status(directory, FINISHED)


def _is_whole(directory: Path) -> bool:
    return folder.read_status(directory).get("status") == FINISHED and load_run(directory).facts is not None


def forget_diverged(directory: Path) -> None:
    """Remove the checkpoints of a run that diverged, now that it is trained again."""
    aside = directory / ".diverged"
    shutil.rmtree(aside, ignore_errors=True)
    if folder.read_status(directory).get("status") != DIVERGED:
        return
    with suppress(FileNotFoundError):
        (directory / "checkpoints").rename(aside)  # a kill leaves all of them or none
    folder.write_status(directory, "running")
    shutil.rmtree(aside, ignore_errors=True)
