"""Run `posenc runs`: list the runs on disk."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.core.console import say
from posenc.core.errors import visible
from posenc.report.runs_table import counts, document, notes, run_table
from posenc.report.terminal import has_color, table_text, terminal_width, write
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


def print_runs(paths: Sequence[str], conditions: Sequence[str], format: str, sort: str) -> None:
    """List the runs below `paths`. Raises UserError for a path that does not exist."""
    paths, encodings = paths_and_encodings(paths)
    if encodings:
        conditions = [f"encoding={','.join(encodings)}", *conditions]
    summaries = _sorted(_read(paths, conditions), SORT_KEYS[sort])
    if format == "json":
        print(document(summaries))
        return
    _print_table(summaries)
    if not summaries:
        _explain_bundles(paths)


def _read(paths: Sequence[str], conditions: Sequence[str]) -> list[RunSummary]:
    """Return summaries of the run directories that meet the conditions, without runs in bundles."""
    runs = []
    for path, problem in find_locations(paths):
        if problem is not None:
            runs.append(Run(path, problem=problem))
        elif not path.name.endswith(SUFFIX):
            runs.append(load_run(path))
    return [summarize(run) for run in matching_runs(runs, conditions)]


def _sorted(summaries: Sequence[RunSummary], key: Callable[[RunSummary], Any]) -> list[RunSummary]:
    """Return the runs in order; those without a value come last."""
    with_value = [summary for summary in summaries if key(summary) is not None]
    without_value = [summary for summary in summaries if key(summary) is None]
    return [*sorted(with_value, key=key), *without_value]


def _print_table(summaries: Sequence[RunSummary]) -> None:
    """Print a line for each run, then why runs are not finished, then the counts."""
    console = Console(width=terminal_width(), highlight=False, markup=False, emoji=False)
    now = time.time()
    if summaries:
        text = table_text(run_table(summaries, now), console.width, has_color(sys.stdout))
        write(f"{text}\n", sys.stdout)
    lines = [Text(note) for note in notes(summaries, now)]
    if any(summary.nats_at_train_length or summary.nats_at_longest for summary in summaries):
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
