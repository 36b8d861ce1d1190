"""How a run stands before a command goes on with it: done, diverged, finished as another command asked."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from posenc.core.errors import RunError
from posenc.results.load import load_run
from posenc.results.safe_read import LARGEST_CONFIG, read_config, read_file
from posenc.running import run_directory as folder
from posenc.running.told import RETRY
from posenc.running.train_job import TrainJob


def is_finished(job: TrainJob) -> bool:
    """Whether the run is there and evaluated as this command asks; else only the missing cells are done."""
    if not _is_whole(job.directory):
        return False
    try:
        stored = read_config(job.directory) or {}
    except (OSError, ValueError, RecursionError):
        return False
    return bool(stored.get("eval") == job.settings["eval"])


def is_done(job: TrainJob) -> bool:
    """Whether there is nothing left to do. Raises RunError for a run that diverged, without --retry."""
    status = folder.read_status(job.directory)
    if status.get("status") == "diverged" and RETRY not in os.environ:
        raise RunError(
            f"this run diverged before: {status.get('reason')}",
            hint="try a smaller train.lr or another seed; --retry trains it again, from the start",
        )
    return is_finished(job)


def finished_before(directory: Path) -> str | None:
    """config.yaml of a run that is finished, by whatever command; None for any other."""
    if not _is_whole(directory):
        return None
    try:
        text = read_file(directory, "config.yaml", LARGEST_CONFIG)
    except (OSError, ValueError):
        return None
    return None if text is None else text.decode("utf-8", "replace")


def write_end(directory: Path, before: str | None, status: str, reason: str) -> None:
    """How an attempt ended that did not finish. What was `finished_before` stays so, as asked for then."""
    if before is None:
        folder.write_status(directory, status, reason=reason)
    else:
        folder.write_config(directory, before)
        folder.write_status(directory, "finished")


def _is_whole(directory: Path) -> bool:
    return folder.read_status(directory).get("status") == "finished" and load_run(directory).facts is not None


def forget_diverged(directory: Path) -> None:
    """What a run that diverged was trained to, now that it is trained again."""
    aside = directory / ".diverged"
    shutil.rmtree(aside, ignore_errors=True)
    if folder.read_status(directory).get("status") != "diverged":
        return
    with suppress(FileNotFoundError):
        (directory / "checkpoints").rename(aside)  # a kill leaves all of them or none
    folder.write_status(directory, "running")
    shutil.rmtree(aside, ignore_errors=True)
