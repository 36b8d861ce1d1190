"""Show a sweep while it runs: a bar for each job below the table of finished cells, else lines.

How far a job is comes from its run directory (metrics.jsonl, records/).
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from posenc.core.console import SECONDS_BETWEEN_LINES, clock, say, screen
from posenc.core.errors import visible
from posenc.results.run_summary import last_metrics
from posenc.running.worker_pool import NOT_STARTED, RUNNING, WAITING, Job

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress
    from rich.table import Table


class SweepDisplay:
    """Show jobs, `at_once` of which run at a time."""

    at_once = 1

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.lock = threading.Lock()
        self.bars: Progress | None = None
        self.tasks: dict[str, Any] = {}
        self.last = time.monotonic()

    def __enter__(self) -> SweepDisplay:
        if sys.stderr.isatty():
            self.bars = _bars(self)
            self.bars.start()
            self.whole = self.bars.add_task("sweep", total=len(self.jobs), completed=self._over(), text="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def say(self, text: str) -> None:
        """Print a line, above the bars."""
        with self.lock:
            if self.bars is None:
                say(text)
            else:
                from rich.text import Text

                self.bars.console.print(Text(text), soft_wrap=True)

    def begin(self, job: Job, text: str) -> None:
        """Show that a job begins."""
        self.say(f"{job.name}: {text}")
        if self.bars is not None:
            self.tasks[job.name] = self.bars.add_task(visible(job.name), total=None, text="starting")

    def end(self, job: Job, text: str) -> None:
        """Show that a job has ended, or needs no process."""
        if self.bars is not None:
            if job.name in self.tasks:
                self.bars.remove_task(self.tasks.pop(job.name))
            self.bars.update(self.whole, completed=self._over())
        self.say(f"{job.name}: {text}")

    def refresh(self) -> None:
        """Show how far the running jobs are, every few seconds."""
        every = 1.0 if self.bars is not None else SECONDS_BETWEEN_LINES * self.at_once
        if time.monotonic() - self.last < every:
            return
        self.last = time.monotonic()
        running = {job.name: self._progress(job) for job in self.jobs if job.state == RUNNING}
        fractions = {name: done / total for name, (done, total, _) in running.items() if total}
        left = left_text(self.jobs, self.at_once, fractions, time.time())
        for name, (done, total, text) in running.items():
            if self.bars is not None:
                self.bars.update(self.tasks[name], completed=done, total=total, text=text)
            elif text:
                at = f"training {done}/{total}  {text}" if total else text
                in_all = f", {left} in all" if left else ""
                self.say(f"{name}: {at}; {self._over()} of {len(self.jobs)} done{in_all}")
        if self.bars is not None:
            self.bars.update(self.whole, text=left)

    def _over(self) -> int:
        return sum(job.state not in (WAITING, RUNNING, NOT_STARTED) for job in self.jobs)

    def _progress(self, job: Job) -> tuple[int, int | None, str]:
        """Return the steps done, the steps in all (None if that is not known) and a text."""
        total, found = job.steps, last_metrics(job.place)
        step = found.get("step", 0)
        if total and step < total:
            if step == 0:
                return 0, total, ""
            return step, total, f"loss {found['loss']:.3f}  {found['tokens_per_second']:,.0f} tokens/s"
        cells = len(list((job.place / "records").glob("[!.]*.json")))
        return total or 0, None, f"evaluating, {cells} cells on disk"


def left_text(jobs: Sequence[Job], at_once: int, fractions: Mapping[str, float], now: float) -> str:
    """Return `1:02:30 left`, `at least 40:00 left`, or nothing where nothing is known yet.

    Jobs take as long as the finished ones did on average; before one is finished, as long as the training of
    those that run, of which `fractions` are done.
    """
    running = [job for job in jobs if job.state == RUNNING]
    waiting = sum(job.state == WAITING for job in jobs)
    known = [job.seconds for job in jobs if job.seconds is not None]
    each = known or [(now - job.began) / f for job in running if (f := fractions.get(job.name, 0)) > 0]
    if not each:
        return ""
    mean = math.fsum(each) / len(each)
    of_running = [max(0.0, mean - (now - job.began)) for job in running]
    left = max([(math.fsum(of_running) + waiting * mean) / at_once, *of_running])
    return ("" if known else "at least ") + f"{clock(left)} left"


def _bars(display: SweepDisplay) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(file=screen())

    class Bars(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield sweep_table(display.jobs, console.width, max(3, console.height - 6 - len(self.tasks)))
            yield self.make_tasks_table([*self.tasks[1:], *self.tasks[:1]])  # the whole sweep last

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
    )
    # without a terminal on stdout, what is printed there must not end up on this console
    redirected = sys.stdout.isatty()
    return Bars(*columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=redirected)


def sweep_table(jobs: Sequence[Job], width: int, most_rows: int) -> Table:
    """Return the mean losses of the finished jobs of each row, as far as they fit; `...` where one runs."""
    from rich.table import Table
    from rich.text import Text

    rows: dict[str, list[Job]] = {}
    for job in jobs:
        rows.setdefault(job.label, []).append(job)
    begun = [label for label, row in rows.items() if any(job.state != WAITING for job in row)]
    shown = list(rows) if len(rows) <= most_rows else (begun or list(rows))[-most_rows:]
    found = {column for job in jobs for column in job.losses}
    room = width - min(30, max(len(visible(label)) for label in shown)) - 7
    columns = sorted(found, key=lambda column: float(column[:-1]))[: max(1, room // 8)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("nats per token", max_width=30, no_wrap=True)
    table.add_column("runs", justify="right")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for label in shown:
        row = rows[label]
        states = {job.state for job in row}
        cells = [_mean([job.losses[c] for job in row if c in job.losses]) for c in columns]
        if not any(cells):
            ended = states - {WAITING, RUNNING, NOT_STARTED}
            cells = ["..." if RUNNING in states else (ended.pop() if ended else "-")]
        done = sum(bool(job.losses) for job in row)
        style = "cyan" if RUNNING in states else ""
        table.add_row(Text(visible(label), style=style), f"{done}/{len(row)}", *map(Text, cells))
    return table


def _mean(values: list[float]) -> str:
    return f"{math.fsum(values) / len(values):.3f}" if values else ""
