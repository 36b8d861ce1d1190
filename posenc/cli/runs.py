"""`posenc runs`: what is on disk, once or again and again while something runs."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.report.runs_table import count, document, notes, progress, summary, table
from posenc.report.table import color_of, unicode_of, width_of
from posenc.results.glance import Glance, bundles, glance, run_directories
from posenc.results.load import Run
from posenc.running.signals import InterruptedRunError, StopFlag

FORMATS = ("table", "json")
EVERY = 2.0  # seconds between two looks
PATIENCE = 30.0  # seconds without a run that is running before a watch ends: a sweep needs some between two
ROWS_FOR_REST = 6  # of a terminal, beside the table
SORTS: dict[str, Callable[[Glance], Any]] = {
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
    """List the runs below `paths` on stdout; with `watch` until none runs any more. The exit code, 0.

    Raises UserError for a path, a format or an order that does not exist.
    """
    if format not in FORMATS:
        raise UserError("--format", visible(format), "no such format", allowed=FORMATS)
    if sort not in SORTS:
        raise UserError("--sort", visible(sort), "no such order", allowed=SORTS)
    if watch and format != "table":
        raise UserError("--watch", None, f"cannot be combined with --format {format}")
    looked = Looker(paths, where, sort, reverse)
    if watch:
        with StopFlag() as stop:
            try:
                return _watch(looked)
            except InterruptedRunError:  # Ctrl-C is the ordinary way to leave
                return 0 if stop.received == signal.SIGINT else stop.exit_code
    runs = looked.runs()
    if format == "json":
        print(document(runs))
        return 0
    console = _console()
    for part in view(runs, console.width, time.time()):
        console.print(part, soft_wrap=isinstance(part, Text))  # half a command is another one
    if not runs and (below := bundles(paths)):
        say(f"{visible(str(below[0]))} is a bundle, without run directories: posenc compare reads it")
    return 0


class Looker:
    """Reads the runs, again only those whose files have changed."""

    def __init__(self, paths: Sequence[str], where: Sequence[str], sort: str, reverse: bool) -> None:
        self.paths, self.where, self.sort, self.reverse = paths, where, sort, reverse
        self._known: dict[Path, tuple[Any, Glance]] = {}
        self._fitted = False  # whether `where` ever found any

    def runs(self) -> list[Glance]:
        """All that fit `where`, in order; those without a value for the order come last. Raises UserError."""
        found = []
        for path, problem in run_directories(self.paths):
            marks = None if problem is not None else _marks(path)
            known = self._known.get(path)
            # one that runs may die without a change on disk
            if known is None or known[0] != marks or known[1].state == "running":
                seen = (
                    glance(path, config=bool(self.where)) if problem is None else _unreadable(path, problem)
                )
                self._known[path] = known = (marks, seen)
            found.append(known[1])
        if self.where:
            from posenc.results.filters import where

            try:
                kept = {run.path for run in where([one.run for one in found], list(self.where))}
            except UserError:
                if not self._fitted:
                    raise
                kept = set()  # the last one that fitted has changed its state
            self._fitted = True
            found = [one for one in found if one.run.path in kept]
        key = SORTS[self.sort]
        with_value = sorted((one for one in found if key(one) is not None), key=key, reverse=self.reverse)
        return with_value + [one for one in found if key(one) is None]


def view(runs: Sequence[Glance], width: int, now: float, rows: int | None = None) -> list[RenderableType]:
    """Table, notes and summary. With `rows` only the newest that many, and no notes but of what runs."""
    shown = list(runs)
    if rows is not None and len(shown) > rows:
        kept = sorted(shown, key=lambda run: (run.state == "running", run.written or 0))[-max(1, rows) :]
        shown = [run for run in shown if run in kept]
    lines = notes(runs if rows is None else [run for run in shown if run.state == "running"][:3], now)
    more = "" if len(shown) == len(runs) else f" ({len(shown)} of them shown)"
    parts: list[RenderableType] = [] if not shown else [table(shown, width, now), Text("")]
    parts += [Text(line, overflow="fold") for line in lines]
    if any(run.losses for run in shown):
        parts.append(
            Text("at T, longest: fixed-target, nats per token; all lengths: posenc compare", style="dim")
        )
    return [*parts, Text(summary(runs) + more, style="bold")]


def _watch(looked: Looker) -> int:
    if not sys.stdout.isatty():
        return _lines(looked)
    console = _console()
    idle_since = time.monotonic()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            runs = looked.runs()
            rows = max(1, console.height - ROWS_FOR_REST - 3)
            live.update(Group(*view(runs, console.width, time.time(), rows)), refresh=True)
            if _runs_now(runs):
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > PATIENCE:
                return 0
            time.sleep(EVERY)


def _lines(looked: Looker) -> int:
    """On a pipe: a line when a run changes its state or has done another tenth; the summary at the end."""
    said: dict[Path, tuple[str, int]] = {}
    idle_since = time.monotonic()
    while True:
        runs = looked.runs()
        for run in runs:
            tenth = 10 * (run.tokens or 0) // run.tokens_asked if run.tokens_asked else 0
            now = (run.state, tenth if run.state == "running" else 0)
            if said.get(run.run.path) != now:
                said[run.run.path] = now
                print(f"{time.strftime('%H:%M:%S')} {_change(run)}", flush=True)
        if _runs_now(runs):
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > PATIENCE:
            print(summary(runs), flush=True)
            return 0
        time.sleep(EVERY)


def _change(run: Glance) -> str:
    parts = [f"{run.run.path}: {run.state}"]
    if run.state == "running":
        parts.append(progress(run))
        if run.training_loss is not None:
            parts.append(f"loss {run.training_loss:.3f}")
        if run.tokens_per_second:
            parts.append(f"{count(round(run.tokens_per_second))} tokens/s")
    elif run.state == "finished" and run.at_train_length is not None:
        parts.append(f"{run.at_train_length:.3f} at T")
        if run.longest is not None:
            parts.append(f"{run.longest[1]:.3f} at {run.longest[0]:g}x")
    elif run.reason:
        parts.append(run.reason)
    return visible(", ".join(parts))


def _runs_now(runs: Sequence[Glance]) -> bool:
    return any(run.state == "running" for run in runs)


def _marks(path: Path) -> tuple[float | None, ...]:
    """Times of the files that a glance reads."""
    times = []
    for name in ("status.json", "results.json", "metrics.jsonl", "config.yaml", "records"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            times.append(-1.0)
    return tuple(times)


def _unreadable(path: Path, problem: str) -> Glance:
    run = Run(path, problem=problem)
    return Glance(run, run.state, None, None, None, None, None, None, {}, None, problem)


def _console() -> Console:
    plain = not color_of(sys.stdout)
    return Console(
        width=width_of(sys.stdout),
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
        safe_box=not unicode_of(sys.stdout),
    )
