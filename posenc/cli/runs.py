"""Run `posenc runs`: list the runs on disk, or delete some of them after a question."""

from __future__ import annotations

import fnmatch
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.core.console import say
from posenc.core.errors import UserError, nearest, plural, visible
from posenc.report.runs_table import ListedRun, counts, document, notes, run_table
from posenc.report.terminal import drop_columns, has_color, table_text, terminal_width, write
from posenc.results.bundles import SUFFIX
from posenc.results.discovery import find_locations, paths_and_encodings
from posenc.results.runs import Run, load_run
from posenc.results.summary import RunSummary, summarize
from posenc.results.where import matching_runs


def _newest_first(summary: RunSummary) -> float | None:
    return None if summary.written is None else -summary.written


SORT_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "path": lambda summary: summary.path,
    "status": lambda summary: summary.status,
    "age": _newest_first,
    "loss": lambda summary: summary.nats_at_train_length,
}


def print_runs(
    paths: Sequence[str], conditions: Sequence[str], format: str, sort: str, columns: Sequence[str]
) -> None:
    """List the runs below `paths`. Raises UserError for a path or a column that does not exist."""
    if columns and format == "json":
        raise UserError("--columns", ",".join(columns), "is for the table", hint="JSON has everything")
    runs = _sorted(_summarized(_read(paths, conditions)), SORT_KEYS[sort])
    if format == "json":
        print(document([listed.summary for listed in runs]))
        return
    _print_table(runs, columns)
    if not runs:
        _explain_bundles(paths)


def _read(paths: Sequence[str], conditions: Sequence[str]) -> list[Run]:
    """Return the run directories that meet the conditions, without runs in bundles."""
    paths, encodings = paths_and_encodings(paths)
    if encodings:
        conditions = [f"encoding={','.join(encodings)}", *conditions]
    runs = []
    for path, problem in find_locations(paths):
        if problem is not None:
            runs.append(Run(path, problem=problem))
        elif not path.name.endswith(SUFFIX):
            runs.append(load_run(path))
    return matching_runs(runs, conditions)


def _summarized(runs: Sequence[Run]) -> list[ListedRun]:
    return [ListedRun(run, summarize(run)) for run in runs]


def _sorted(runs: Sequence[ListedRun], key: Callable[[RunSummary], Any]) -> list[ListedRun]:
    """Return the runs in order; those without a value come last."""
    with_value = [listed for listed in runs if key(listed.summary) is not None]
    without_value = [listed for listed in runs if key(listed.summary) is None]
    return [*sorted(with_value, key=lambda listed: key(listed.summary)), *without_value]


def _print_table(runs: Sequence[ListedRun], columns: Sequence[str]) -> None:
    """Print a line for each run, then why runs are not finished, then the counts."""
    console = Console(width=terminal_width(), highlight=False, markup=False, emoji=False)
    now = time.time()
    hidden = 0
    has_losses = False
    if runs:
        table = run_table(runs, now, columns)
        text = table_text(table, console.width, has_color(sys.stdout))
        write(f"{text}\n", sys.stdout)
        heads = drop_columns(table, console.width).heads
        hidden = len(table.columns) - len(heads)
        has_losses = "at T" in heads or "longest" in heads
    summaries = [listed.summary for listed in runs]
    lines = [Text(note) for note in notes(summaries, now)]
    if hidden:
        lines.append(Text(f"{plural(hidden, 'more column')}: a wider terminal, or --columns", style="dim"))
    if has_losses:
        lines.append(Text("at T, longest: fixed-target, nats per token; more: posenc compare", style="dim"))
    lines.append(Text(counts(summaries), style="bold"))
    for line in lines:
        console.print(line, soft_wrap=True)  # a command broken over two lines could not be copied


def _explain_bundles(paths: Sequence[str]) -> None:
    """Print which command reads a bundle, if there is nothing but a bundle."""
    for path, _ in find_locations(paths):
        if path.name.endswith(SUFFIX):
            say(f"{visible(str(path))} is a bundle, without run directories: posenc compare reads it")
            return


# --- deleting


def delete_runs(paths: Sequence[str], conditions: Sequence[str], names: Sequence[str], *, yes: bool) -> int:
    """Delete the named runs below `paths` after a question; return 1 if the answer is no.

    A name is that of a run directory, its path, or a glob. Raises UserError, RunError.
    """
    from posenc.running.delete_runs import check_deletable, delete_run, size_of

    runs = _named(_read(paths, conditions), names)
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
        delete_run(run.path)
        say(f"deleted {visible(run.path)}")
    return 0


def _named(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """Return the runs of these names, each once. Raises UserError for a name without a run, or with two."""
    chosen: dict[str, Run] = {}
    for name in names:
        matches = [run for run in runs if _is_called(run, name)]
        if not matches:
            close = nearest(name, [run.name for run in runs])
            hint = "see: posenc runs" if close is None else f"did you mean: {close}"
            raise UserError("--delete", visible(name), "no such run", hint=hint)
        is_glob = any(sign in name for sign in "*?[")
        if len(matches) > 1 and not is_glob:
            hint = f"name its path: {visible(matches[0].path)}"
            raise UserError("--delete", visible(name), "runs of this name are in several folders", hint=hint)
        for run in matches:
            chosen[str(run.path)] = run
    return list(chosen.values())


def _is_called(run: Run, name: str) -> bool:
    is_path = "/" in name.rstrip("/") and Path(name).resolve() == run.path.resolve()
    return is_path or fnmatch.fnmatchcase(run.name, name)


def _agrees(question: str) -> bool:
    """Ask on stderr; only `y` and `yes` agree, and a closed stdin does not."""
    sys.stderr.write(question)
    sys.stderr.flush()
    answer = sys.stdin.readline() if sys.stdin is not None else ""
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    return answer.strip().casefold() in ("y", "yes")
