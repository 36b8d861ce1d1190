"""Delete run directories: only of posenc, never one that a process writes to, and never half of one."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from posenc.core.errors import RunError, UserError, visible
from posenc.core.run_states import RUNNING
from posenc.results.runs import Run
from posenc.running.locks import locked


def check_deletable(runs: Sequence[Run]) -> None:
    """Raise UserError for a run that a process writes to, and for a link."""
    for run in runs:
        if run.state == RUNNING:
            process = f"process {run.status.get('pid', '?')} on {run.status.get('host', '?')}"
            problem = f"is running ({visible(process)})"
            raise UserError("--delete", visible(run.name), problem, hint="stop it first")
        # The rename below would move the link, and leave the run that it leads to.
        if run.path.is_symlink():
            problem = "is a link to a folder elsewhere"
            raise UserError("--delete", visible(run.name), problem, hint=f"rm {visible(run.path)}")


def size_of(directory: Path) -> int:
    """Return the bytes of all files and folders in a run directory."""
    # lstat, since a link's own size is what its deletion frees.
    return sum(path.lstat().st_size for path in directory.rglob("*"))


def delete_run(directory: Path) -> None:
    """Delete a run directory. Raises HeldRunError if a process holds it, RunError where the disk refuses."""
    # Listings do not look into hidden folders, so a run that is half deleted is in none.
    hidden = directory.with_name(f".{directory.name}.deleted")
    try:
        with locked(directory), locked(directory, "evaluation"):
            shutil.rmtree(hidden, ignore_errors=True)  # left by a deletion that was stopped
            directory.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise RunError(f"cannot delete {visible(directory)}: {error.strerror}") from error
