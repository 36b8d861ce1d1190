"""A sweep while it runs: how far it is, the time left, and the table of its finished cells.

Every job is a process of its own. Where they run one after the other, each draws on the terminal itself, and
what it must know of the others is handed to it in the environment: nothing is shared, left behind or in the
way when one of them dies. Several at once are drawn by the sweep (posenc.report.several).
"""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from posenc.core.console import clock
from posenc.core.errors import visible

VARIABLE = "POSENC_SWEEP_STATE"
LARGEST = 100_000  # bytes of it; Linux takes 128 kB in one variable
PENDING, RUNNING = "", "..."


@dataclass
class Row:
    """One row of the table: an encoding, or whatever the jobs differ in besides their seed."""

    label: str
    jobs: int
    done: int = 0
    state: str = PENDING  # RUNNING, or why there are no numbers: failed
    nats: dict[str, list[float]] = field(default_factory=dict)  # by length (`4x`), one a finished job


@dataclass
class SweepState:
    """What a job is told of its sweep. Jobs that were finished before it began count as done."""

    number: int  # of this job, from 1
    total: int
    label: str
    seconds: list[float] = field(default_factory=list)  # of the jobs that have run in this sweep
    remaining: int = 0  # jobs to run after this one
    began: float = 0.0  # this job, seconds since the epoch
    rows: list[Row] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)

    def to_environment(self) -> dict[str, str]:
        """The variable that tells a job's process. Without the table where that would be too long."""
        text = json.dumps(asdict(self))
        if len(text) > LARGEST:
            text = json.dumps({**asdict(self), "rows": [], "columns": []})
        return {VARIABLE: text}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> SweepState | None:
        """What this process was told; None outside a sweep, or where it cannot be read."""
        try:
            told: dict[str, Any] = json.loads(environment[VARIABLE])
            return cls(**{**told, "rows": [Row(**row) for row in told["rows"]]})
        except (KeyError, TypeError, ValueError):
            return None

    def left(self, present: float | None, now: float | None = None) -> str:
        """`1:02:30 left`, `at least 40:00 left`, or nothing; `present`: of this job, by its own pace."""
        elapsed = max(0.0, (time.time() if now is None else now) - self.began)
        return left_words(seconds_left([(elapsed, present)], self.remaining, 1, self.seconds))


def seconds_left(
    running: Sequence[tuple[float, float | None]], waiting: int, at_once: int, seconds: Sequence[float]
) -> tuple[float, bool] | None:
    """Seconds until a sweep ends, and whether that is only a lower bound; None when nothing is known.

    `running`: of every job that runs, how long it has, and what is left of its training or evaluation by its
    own pace. Jobs to come take as long as the finished ones did on average (`seconds`); before one is
    finished, as long as the training of those that run, which leaves out the evaluation.
    """
    if seconds:
        each = math.fsum(seconds) / len(seconds)
        left = [max(each - elapsed, present or 0.0) for elapsed, present in running]
    else:
        whole = [elapsed + present for elapsed, present in running if present is not None]
        if not whole:
            return None
        each = math.fsum(whole) / len(whole)
        left = [each - elapsed if present is None else present for elapsed, present in running]
    ends = [max(0.0, one) for one in left] + [0.0] * (at_once - len(left))
    heapq.heapify(ends)
    for _ in range(waiting):  # the next job begins where one ends first
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends), not seconds


def left_words(found: tuple[float, bool] | None) -> str:
    """What `seconds_left` found: `1:02:30 left`, `at least 40:00 left`, or nothing."""
    if found is None:
        return ""
    return ("at least " if found[1] else "") + clock(found[0]) + " left"


def sweep_table(state: SweepState, width: int, most_rows: int) -> Table:
    """The cells that are finished: means over the jobs of a row, dots where one runs now.

    Columns that do not fit are left out from the right; of more than `most_rows` rows the last with numbers.
    """
    shown = state.rows
    if len(shown) > most_rows:
        begun = [row for row in shown if row.done or row.state]
        shown = begun[-most_rows:] if len(begun) >= most_rows else shown[:most_rows]
    seeds = any(row.jobs > 1 for row in state.rows)
    room = width - min(30, max((len(visible(row.label)) for row in shown), default=0)) - (7 if seeds else 0)
    columns = state.columns[: max(1, room // 8)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("nats per token", max_width=30, no_wrap=True)
    if seeds:
        table.add_column("runs", justify="right")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in shown:
        cells = [_mean(row.nats.get(column, [])) for column in columns]
        if not any(cells):
            cells = [visible(row.state) or "-", *[""] * (len(columns) - 1)]
        done = [f"{row.done}/{row.jobs}"] if seeds else []
        style = "cyan" if row.state == RUNNING else ("red" if row.state else "")
        table.add_row(Text(visible(row.label), style=style), *done, *map(Text, cells))
    return table


def finished_line(nats: Mapping[str, float], seconds: float | None) -> str:
    """`0.5x 1.210, 1x 1.185, 8x 3.651 nats per token; 2:41`: a finished job for a log."""
    losses = ", ".join(f"{column} {value:.3f}" for column, value in nats.items())
    took = [] if seconds is None else [clock(seconds)]
    return "; ".join(([f"{losses} nats per token"] if losses else []) + took)


def _mean(values: list[float]) -> str:
    return f"{math.fsum(values) / len(values):.3f}" if values else ""
