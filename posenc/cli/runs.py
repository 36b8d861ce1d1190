"""`posenc runs`: what is on disk, once or with --watch; `posenc export`: results in one small file."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.captions import millions
from posenc.report.runs_table import document, notes, progress, summary, table
from posenc.report.writers import color_of, unicode_of, width_of
from posenc.results.load import SUFFIX, Run, bundled, load_runs, packed
from posenc.results.run import run_names
from posenc.results.run_summary import RunSummary, bundles, run_directories, run_summary
from posenc.results.settings import where as fitting
from posenc.running.signals import InterruptedRunError, StopFlag

FORMATS = ("table", "json")
EVERY = 2.0  # seconds between two looks
PATIENCE = 30.0  # seconds without a running run before a watch ends: a sweep needs some between two
ROWS_BELOW = 9  # of a terminal, beside the table
SUMMARIZED = (
    "status.json",
    "results.json",
    "metrics.jsonl",
    "config.yaml",
    "records",
)  # what a row is read from
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
    reader = RunReader(paths, where, sort, reverse)
    if watch:
        with StopFlag() as stop:
            try:
                (_watch if sys.stdout.isatty() else _watch_lines)(reader)
            except InterruptedRunError:  # Ctrl-C is the ordinary way to leave
                return 0 if stop.received == signal.SIGINT else stop.exit_code
        return 0
    runs = reader.runs()
    if format == "json":
        print(document(runs))
        return 0
    console = _console()
    for part in _view(runs, console.width, time.time()):
        console.print(part, soft_wrap=isinstance(part, Text))  # half a command is another one
    if not runs and (below := bundles(paths)):
        say(f"{visible(str(below[0]))} is a bundle, without run directories: posenc compare reads it")
    return 0


class RunReader:
    """Reads runs, and again only those whose files have changed."""

    def __init__(self, paths: Sequence[str], where: Sequence[str], sort: str, reverse: bool) -> None:
        self.paths, self.where, self.reverse = paths, list(where), reverse
        self.key = SORTS[sort]
        self._known: dict[Path, tuple[Any, RunSummary]] = {}
        self._fitted = False  # whether `where` ever found any

    def runs(self) -> list[RunSummary]:
        """Return all that fit `where`, in order; those without a value come last. Raises UserError."""
        found = []
        for path, problem in run_directories(self.paths):
            times = None if problem is not None else [_changed(path / name) for name in SUMMARIZED]
            known = self._known.get(path)
            # one that is running may die without a change on disk
            if known is None or known[0] != times or known[1].state == "running":
                self._known[path] = known = (times, self._read(path, problem))
            found.append(known[1])
        if self.where:
            try:
                kept = {run.path for run in fitting([one.run for one in found], self.where)}
            except UserError:
                if not self._fitted:
                    raise
                kept = set()  # the last one that fitted has changed its state
            self._fitted = True
            found = [one for one in found if one.run.path in kept]
        with_value = [one for one in found if self.key(one) is not None]
        without = [one for one in found if self.key(one) is None]
        return [*sorted(with_value, key=self.key, reverse=self.reverse), *without]

    def _read(self, path: Path, problem: str | None) -> RunSummary:
        if problem is None:
            return run_summary(path)
        run = Run(path, problem=problem)
        return RunSummary(run, run.state, None, None, None, None, None, None, {}, None, problem)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0


def _view(
    runs: Sequence[RunSummary], width: int, now: float, rows: int | None = None
) -> list[RenderableType]:
    """Return table, notes and summary; with `rows` only the newest so many, and notes of what is running."""
    shown = list(runs)
    if rows is not None and len(shown) > rows:
        newest = sorted(shown, key=lambda run: (run.state == "running", run.written or 0))[-max(1, rows) :]
        shown = [run for run in shown if run in newest]
    noted = runs if rows is None else [run for run in shown if run.state == "running"][:3]
    more = "" if len(shown) == len(runs) else f" ({len(shown)} of them shown)"
    parts: list[RenderableType] = [table(shown, width, now), Text("")] if shown else []
    parts += [Text(line, overflow="fold") for line in notes(noted, now)]
    if any(run.losses for run in shown):
        legend = "at T, longest: fixed-target, nats per token; all lengths: posenc compare"
        parts.append(Text(legend, style="dim"))
    return [*parts, Text(summary(runs) + more, style="bold")]


def _watch(reader: RunReader) -> None:
    """Show the table in place until no run has been running for PATIENCE seconds."""
    console = _console()
    idle_since = time.monotonic()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while time.monotonic() - idle_since <= PATIENCE:
            runs = reader.runs()
            rows = max(1, console.height - ROWS_BELOW)
            live.update(Group(*_view(runs, console.width, time.time(), rows)), refresh=True)
            if any(run.state == "running" for run in runs):
                idle_since = time.monotonic()
            time.sleep(EVERY)


def _watch_lines(reader: RunReader) -> None:
    """On a pipe: print a line when a run changes its state or has done another tenth, then the summary."""
    said: dict[Path, tuple[str, int]] = {}
    idle_since = time.monotonic()
    while True:
        runs = reader.runs()
        for run in runs:
            tenth = 10 * (run.tokens or 0) // run.tokens_asked if run.tokens_asked else 0
            now = (run.state, tenth if run.state == "running" else 0)
            if said.get(run.run.path) != now:
                said[run.run.path] = now
                print(f"{time.strftime('%H:%M:%S')} {visible(_change(run))}", flush=True)
        if any(run.state == "running" for run in runs):
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > PATIENCE:
            print(summary(runs), flush=True)
            return
        time.sleep(EVERY)


def _change(run: RunSummary) -> str:
    parts = [f"{run.run.path}: {run.state}"]
    if run.state == "running":
        parts.append(progress(run))
        if run.training_loss is not None:
            parts.append(f"loss {run.training_loss:.3f}")
        if run.tokens_per_second:
            parts.append(f"{millions(round(run.tokens_per_second))} tokens/s")
    elif run.state == "finished" and run.at_train_length is not None:
        parts.append(f"{run.at_train_length:.3f} at T")
        if run.longest is not None:
            parts.append(f"{run.longest[1]:.3f} at {run.longest[0]:g}x")
    elif run.reason:
        parts.append(run.reason)
    return ", ".join(parts)


def _console() -> Console:
    return Console(
        width=width_of(sys.stdout),
        highlight=False,
        markup=False,
        emoji=False,
        color_system="auto" if color_of(sys.stdout) else None,
        safe_box=not unicode_of(sys.stdout),
    )


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
