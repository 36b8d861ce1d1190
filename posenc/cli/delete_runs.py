"""Run `posenc runs --delete`: delete runs from the disk after asking for confirmation."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

from posenc.cli.runs import read_runs
from posenc.core.console import say
from posenc.core.errors import UserError, nearest, plural, suggestion, visible
from posenc.results.runs import Run
from posenc.running.delete_runs import check_deletable, delete_run, size_of


def delete_runs(
    arguments: Sequence[str], conditions: Sequence[str], names: Sequence[str], *, yes: bool
) -> int:
    """Delete runs after asking for confirmation, unless `yes` gives it; return 1 if the answer is no.

    `arguments` and `conditions` choose runs as for a list. Those of them that `names` name are deleted. A
    name is that of a run directory, its path, or a glob of names. Raises UserError, RunError.
    """
    runs = _runs_of_names(read_runs(arguments, conditions), names)
    # All runs are checked and listed first, so that a refusal or a no deletes none of them.
    check_deletable(runs)
    total = 0
    for run in runs:
        size = size_of(run.path)
        total += size
        say(f"{visible(run.path)}  {run.state}  {size / 1e6:.1f} MB")
    question = f"Delete {plural(len(runs), 'run')}, {total / 1e6:.1f} MB? Nothing brings them back. [y/N] "
    if not yes and not _agrees(question):
        say("nothing was deleted (--yes deletes without a question)")
        return 1
    for run in runs:
        # One after the other, each whole: a stop in between leaves the others as they were.
        delete_run(run.path)
        say(f"deleted {visible(run.path)}")
    return 0


def _runs_of_names(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """Return the runs of these names, each run once.

    Raises UserError for a name without a run, and for one that several folders hold.
    """
    chosen: dict[str, Run] = {}
    for text in names:
        name = text.rstrip("/")  # the completion of a shell adds a slash
        exact_matches = [run for run in runs if run.name == name or _is_path_of(name, run)]
        # Of two runs of one name nobody can say which is meant, and a deletion cannot be taken back.
        if len(exact_matches) > 1:
            hint = f"name its path: {visible(exact_matches[0].path)}"
            raise UserError("--delete", visible(text), "runs of this name are in several folders", hint=hint)
        # a name that exists is no glob, whatever signs are in it
        matches = exact_matches or [run for run in runs if fnmatch.fnmatchcase(run.name, name)]
        if not matches:
            close = nearest(name, [run.name for run in runs])
            hint = "see: posenc runs" if close is None else suggestion(close)
            raise UserError("--delete", visible(text), "no such run", hint=hint)
        # The key is the path: a run that two names mean is deleted once.
        for run in matches:
            chosen[str(run.path)] = run
    return list(chosen.values())


def _is_path_of(name: str, run: Run) -> bool:
    # A path may be typed in many ways, with `..` or through a link.
    return "/" in name and Path(name).resolve() == run.path.resolve()


def _agrees(question: str) -> bool:
    """Ask on stderr; only `y` and `yes` agree, and a closed stdin does not."""
    # The question goes to stderr: stdout may be a pipe, where nobody would see it.
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    # Without a line typed (a closed stdin, Ctrl-D) the cursor still stands behind the question.
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    return answer.strip().casefold() in ("y", "yes")
