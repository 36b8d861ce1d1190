"""`posenc runs`: what is on disk; `posenc export`: results in one small file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.runs_table import Summary, counts, document, notes, run_summary, run_table
from posenc.report.terminal import has_color, table_text, terminal_width, write
from posenc.report.texts import MOST_NAMED
from posenc.results.load import SUFFIX, Run, bundled, load_run, load_runs, packed, run_places
from posenc.results.settings import where as fitting

SORTS: dict[str, Callable[[Summary], Any]] = {
    "path": lambda run: run["path"],
    "status": lambda run: run["status"],
    "age": lambda run: None if run["written"] is None else -run["written"],
    "loss": lambda run: run["nats_at_train_length"],
}


def print_runs(paths: Sequence[str], conditions: Sequence[str], format: str, sort: str) -> None:
    """List the runs below `paths`. Raises UserError for a path that does not exist."""
    runs = _read(paths, conditions, SORTS[sort])
    if format == "json":
        print(document(runs))
        return
    console = Console(width=terminal_width(), highlight=False, markup=False, emoji=False)
    now = time.time()
    if runs:
        write(table_text(run_table(runs, now), console.width, has_color(sys.stdout)) + "\n", sys.stdout)
    lines = [Text(line) for line in notes(runs, now)]
    if any(run["nats_at_train_length"] or run["nats_at_longest"] for run in runs):
        lines.append(Text("at T, longest: fixed-target, nats per token; more: posenc compare", style="dim"))
    for line in [*lines, Text(counts(runs), style="bold")]:
        console.print(line, soft_wrap=True)  # half a command is another one
    below = [path for path, _ in run_places(paths) if path.name.endswith(SUFFIX)]
    if below and not runs:
        say(f"{visible(str(below[0]))} is a bundle, without run directories: posenc compare reads it")


def _read(paths: Sequence[str], conditions: Sequence[str], key: Callable[[Summary], Any]) -> list[Summary]:
    """Return the runs that fit, in order; those without a value come last. Raises UserError."""
    runs = [
        Run(path, problem=problem) if problem is not None else load_run(path)
        for path, problem in run_places(paths)
        if problem is not None or not path.name.endswith(SUFFIX)
    ]
    found = [run_summary(run) for run in fitting(runs, conditions)]
    with_value = sorted((one for one in found if key(one) is not None), key=key)
    return [*with_value, *(one for one in found if key(one) is None)]


def run_export(paths: Sequence[str], conditions: Sequence[str], out: str) -> None:
    """Write every run below `paths` that has ended into the bundle `out`. Raises UserError, RunError.

    One that diverged goes with the others: without it its row would be that of the survivors.
    """
    if not out.endswith(SUFFIX):
        raise UserError("--out", out, "is not the name of a bundle", hint=f"{out}{SUFFIX}")
    path = output_file("--out", out)
    found = fitting(load_runs(paths), conditions)
    ended = [run for run in found if _has_ended(run)]
    if not any(run.state == "finished" for run in ended):
        raise UserError("RUNS", " ".join(paths), "no finished run there", hint="see: posenc runs")
    twice = sorted(name for name, times in Counter(run.name for run in ended).items() if times > 1)
    if twice:
        hint = "name the folder that is meant"
        raise UserError("RUNS", twice[0], "the same run in several folders", hint=hint)
    data = packed([bundled(run) for run in sorted(ended, key=lambda run: run.name)])
    write_bytes_atomic(path, data)
    runs = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    diverged = sum(run.state == "diverged" for run in ended)
    runs += f" ({diverged} diverged)" if diverged else ""
    say(f"wrote {visible(out)}: {runs}, {len(data) / 1e6:.2f} MB")
    if left := [run for run in found if not _has_ended(run)]:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        say(f"left out, not finished: {', '.join(run.name for run in left[:MOST_NAMED])}{more}")


def _has_ended(run: Run) -> bool:
    return run.state == "diverged" or (run.state == "finished" and run.facts is not None)
