"""Run `posenc runs`: list the runs on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.core.console import say, terminal_width, write
from posenc.core.errors import UserError, plural, visible
from posenc.report.runs_table import ListedRun, run_notes, run_table, runs_json, state_counts
from posenc.report.terminal import drop_columns, has_color, table_text
from posenc.results.bundles import SUFFIX
from posenc.results.discovery import Location, find_locations, paths_and_encodings
from posenc.results.runs import Run, load_run
from posenc.results.summary import RunSummary, summarize
from posenc.results.where import matching_runs


def _negative_time(summary: RunSummary) -> float | None:
    """Return the key of the order by age: the run that was written last comes first."""
    return None if summary.written is None else -summary.written


SORT_KEYS: dict[str, Callable[[RunSummary], Any]] = {
    "path": lambda summary: summary.path,
    "status": lambda summary: summary.status,
    "age": _negative_time,
    "loss": lambda summary: summary.nats_at_train_length,
}


def print_runs(
    arguments: Sequence[str],
    conditions: Sequence[str],
    *,
    as_json: bool,
    sort: str,
    columns: Sequence[str],
) -> None:
    """List the runs that the arguments name, which are paths and encodings.

    Raises UserError for a path or a column that does not exist.
    """
    if columns and as_json:
        raise UserError("--columns", ",".join(columns), "is for the table", hint="JSON has everything")
    paths, encodings = paths_and_encodings(arguments)
    locations = find_locations(paths)
    runs = _runs_at(locations, encodings, conditions)
    listed_runs = _sorted([ListedRun(run, summarize(run)) for run in runs], SORT_KEYS[sort])
    if as_json:
        print(runs_json([listed.summary for listed in listed_runs]))
        return
    _print_table(listed_runs, columns)
    if not runs:
        _explain_bundles(locations)


def read_runs(arguments: Sequence[str], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that the arguments name, which are paths and encodings. Raises UserError.

    Runs in bundles are left out, since they have no run directory.
    """
    paths, encodings = paths_and_encodings(arguments)
    return _runs_at(find_locations(paths), encodings, conditions)


def _runs_at(locations: Sequence[Location], encodings: Sequence[str], conditions: Sequence[str]) -> list[Run]:
    """Return the runs with a directory that are of these encodings, if any, and meet the conditions."""
    runs = []
    for path, problem in locations:
        if problem is not None:
            # A damaged run is a line of the list with its problem: the others are still to be seen.
            runs.append(Run(path, problem=problem))
        elif not _is_bundle(path):
            runs.append(load_run(path))
    if encodings:
        # Names of encodings on the line mean the same as `--where encoding=...`.
        conditions = [f"encoding={','.join(encodings)}", *conditions]
    return matching_runs(runs, conditions)


def _is_bundle(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def _sorted(runs: Sequence[ListedRun], key: Callable[[RunSummary], Any]) -> list[ListedRun]:
    """Return the runs in order; those without a value come last."""
    with_value = [listed for listed in runs if key(listed.summary) is not None]
    without_value = [listed for listed in runs if key(listed.summary) is None]
    return [*sorted(with_value, key=lambda listed: key(listed.summary)), *without_value]


def _print_table(runs: Sequence[ListedRun], columns: Sequence[str]) -> None:
    """Print a line for each run, then why runs are not finished, then how many runs have which status."""
    console = Console(width=terminal_width(), highlight=False, markup=False, emoji=False)
    # One time for all rows, so that equal ages are printed alike.
    now = time.time()
    summaries = [listed.summary for listed in runs]
    lines = [Text(note) for note in run_notes(summaries, now)]
    if runs:
        table = run_table(runs, now, columns)
        # A table whose lines are broken cannot be read, so columns
        # that have no room are left out and counted.
        narrow_table = drop_columns(table, console.width)
        write(f"{table_text(narrow_table, console.width, has_color(sys.stdout))}\n", sys.stdout)
        hidden = len(table.columns) - len(narrow_table.columns)
        if hidden:
            text = f"{plural(hidden, 'more column')}: a wider terminal, or --columns"
            lines.append(Text(text, style="dim"))
        # Heads have no room for a protocol and a unit.
        if not {"at T", "longest"}.isdisjoint(narrow_table.heads):
            text = "at T, longest: fixed-target, nats/token; more: posenc compare"
            lines.append(Text(text, style="dim"))
    lines.append(Text(state_counts(summaries), style="bold"))
    for line in lines:
        console.print(line, soft_wrap=True)  # a command broken over two lines could not be copied


def _explain_bundles(locations: Sequence[Location]) -> None:
    """Print which command reads a bundle. It is for places that hold bundles alone."""
    for path, _ in locations:
        if _is_bundle(path):
            say(f"{visible(str(path))} is a bundle, without run directories: posenc compare reads it")
            return
