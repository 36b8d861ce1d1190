"""`posenc runs`: what is on disk, once or with --watch; `posenc export`: results in one small file."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.runs_table import document, notes, summary, table
from posenc.report.writers import color_of, unicode_of, width_of
from posenc.results.load import SUFFIX, Run, bundled, load_runs, packed, run_names
from posenc.results.run_summary import RunSummary, bundles, run_directories, run_summary
from posenc.results.settings import where as fitting
from posenc.running.signals import InterruptedRunError, StopFlag

FORMATS = ("table", "json")
EVERY = 2.0  # seconds between two looks
PATIENCE = 30.0  # seconds without a running run before a watch ends: a sweep needs some between two
ROWS_BELOW = 9  # of a terminal, beside the table
SORTS: dict[str, Callable[[RunSummary], Any]] = {
    "path": lambda run: str(run.run.path),
    "status": lambda run: run.state,
    "encoding": lambda run: run.encoding,
    "seed": lambda run: run.run.seed,
    "age": lambda run: None if run.written is None else -run.written,
    "tokens": lambda run: run.tokens,
    "speed": lambda run: run.tokens_per_second,
    "loss": lambda run: run.at_train_length,
    "longest": lambda run: None if run.longest is None else run.longest[1],
}


def print_runs(
    paths: Sequence[str], *, where: Sequence[str], format: str, sort: str, reverse: bool, watch: bool
) -> int:
    """List the runs below `paths`, with `watch` until none is running; return the exit code.

    Raises UserError for a path, a format or an order that does not exist.
    """
    if format not in FORMATS:
        raise UserError("--format", format, "no such format", allowed=FORMATS)
    if sort not in SORTS:
        raise UserError("--sort", sort, "no such order", allowed=SORTS)
    if watch and format != "table":
        raise UserError("--watch", None, f"cannot be combined with --format {format}")
    console = Console(
        width=width_of(sys.stdout),
        highlight=False,
        markup=False,
        emoji=False,
        color_system="auto" if color_of(sys.stdout) else None,
        safe_box=not unicode_of(sys.stdout),
    )
    if watch:
        with StopFlag() as stop:
            try:
                _watch(console, lambda: _read(paths, where, sort, reverse))
            except InterruptedRunError:  # Ctrl-C is the ordinary way to leave
                return 0 if stop.received == signal.SIGINT else stop.exit_code
        return 0
    runs = _read(paths, where, sort, reverse)
    if format == "json":
        print(document(runs))
        return 0
    for line in _view(runs, console.width, time.time()):
        console.print(line, soft_wrap=True)  # half a command is another one
    if not runs and (below := bundles(paths)):
        say(f"{visible(str(below[0]))} is a bundle, without run directories: posenc compare reads it")
    return 0


def _read(paths: Sequence[str], where: Sequence[str], sort: str, reverse: bool) -> list[RunSummary]:
    """Return all runs that fit `where`, in order; those without a value come last. Raises UserError."""
    found = []
    for path, problem in run_directories(paths):
        if problem is None:
            found.append(run_summary(path))
        else:
            run = Run(path, problem=problem)
            found.append(RunSummary(run, run.state, problem))
    if where:
        kept = {run.path for run in fitting([one.run for one in found], where)}
        found = [one for one in found if one.run.path in kept]
    key = SORTS[sort]
    with_value = sorted((one for one in found if key(one) is not None), key=key, reverse=reverse)
    return [*with_value, *(one for one in found if key(one) is None)]


def _view(runs: Sequence[RunSummary], width: int, now: float, rows: int | None = None) -> list[Text]:
    """Return table, notes and summary; with `rows` only the newest so many, and notes of what is running."""
    shown = list(runs)
    if rows is not None and len(shown) > rows:
        newest = sorted(shown, key=lambda run: (run.state == "running", run.written or 0))[-max(1, rows) :]
        shown = [run for run in shown if run in newest]
    noted = runs if rows is None else [run for run in shown if run.state == "running"][:3]
    more = "" if len(shown) == len(runs) else f" ({len(shown)} of them shown)"
    lines = [*table(shown, width, now), Text("")] if shown else []
    lines += [Text(line) for line in notes(noted, now)]
    if any(run.losses for run in shown):
        lines.append(Text("at T, longest: fixed-target, nats per token; more: posenc compare", style="dim"))
    return [*lines, Text(summary(runs) + more, style="bold")]


def _watch(console: Console, read: Callable[[], list[RunSummary]]) -> None:
    """Show the table in place until no run has been running for PATIENCE seconds; a pipe gets the last."""
    runs, seen = read(), time.monotonic()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while time.monotonic() - seen <= PATIENCE:
            rows = max(1, console.height - ROWS_BELOW)
            live.update(Group(*_view(runs, console.width, time.time(), rows)), refresh=True)
            if any(run.state == "running" for run in runs):
                seen = time.monotonic()
            time.sleep(EVERY)
            try:
                runs = read()
            except UserError:  # the last one that fitted --where has changed its state
                runs = []


def run_export(paths: Sequence[str], conditions: Sequence[str], out: str) -> None:
    """Write every run below `paths` that has ended into the bundle `out`. Raises UserError, RunError.

    One that diverged goes with the others: without it its row would be that of the survivors.
    """
    if not out.endswith(SUFFIX):
        raise UserError("--out", out, "the file's name must tell what it is", hint=f"{out}{SUFFIX}")
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
        say(f"left out, not finished: {run_names(left)}")


def _has_ended(run: Run) -> bool:
    return run.state == "diverged" or (run.state == "finished" and run.facts is not None)
