"""A sweep while it runs: how far it is, the time left, and the table of its finished cells.

Every job is a process of its own that draws on the terminal itself. What it must know of the others is handed
to it in the environment, so nothing is shared, left behind or in the way when one of them dies.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from posenc.results.names import visible

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

    def seconds_left(self, present: float | None, now: float | None = None) -> tuple[float, bool] | None:
        """Seconds until the sweep ends, and whether that is only a lower bound; None when nothing is known.

        `present`: what is left of the present job's training or evaluation by its own pace. Jobs to come
        take as long as the finished ones did on average; in the first job, as long as its training, which
        leaves out the evaluation.
        """
        elapsed = max(0.0, (time.time() if now is None else now) - self.began)
        if self.seconds:
            each = math.fsum(self.seconds) / len(self.seconds)
            return max(each - elapsed, present or 0.0) + self.remaining * each, False
        if present is None:
            return None
        return present + self.remaining * (elapsed + present), True

    def left(self, present: float | None, now: float | None = None) -> str:
        """`1:02:30 left`, `at least 40:00 left`, or nothing."""
        found = self.seconds_left(present, now)
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


def clock(seconds: float) -> str:
    """`2:05`, `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _mean(values: list[float]) -> str:
    return f"{math.fsum(values) / len(values):.3f}" if values else ""
