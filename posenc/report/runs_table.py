"""What is on disk, for `posenc runs`: a table that fits the width, lines for what did not finish, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from posenc.report.live import clock
from posenc.report.words import length
from posenc.results.again import command_again
from posenc.results.glance import Glance
from posenc.results.names import visible

STYLES = {"finished": "green", "running": "cyan", "interrupted": "yellow", "dead": "red", "failed": "red"}
ORDER = ("finished", "running", "interrupted", "failed", "diverged", "dead", "damaged", "unknown")
AGAIN = ("dead", "interrupted", "failed")  # what the same command may still finish
GAP = 2
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(seconds: float) -> str:
    """`3d`, `12m`: the largest unit that fits."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "now"


def count(number: int) -> str:
    """Tokens in short: `4M`, `1.25M`, `60k`, `512`."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size * 0.9995:
            return f"{number / size:.3g}{unit}"
    return str(number)


def progress(run: Glance) -> str:
    """Tokens trained on, and of how many where that is not all."""
    if run.tokens is None:
        return "-"
    if run.tokens_asked and run.tokens < 0.999 * run.tokens_asked:
        return f"{count(run.tokens)}/{count(run.tokens_asked)}"
    return count(run.tokens)


def summary(runs: Sequence[Glance]) -> str:
    """`25 runs: 20 finished, 5 failed`."""
    found = Counter(run.state for run in runs)
    states = sorted(found, key=lambda state: ORDER.index(state) if state in ORDER else len(ORDER))
    counts = ", ".join(f"{found[state]} {visible(state)}" for state in states)
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}" + (f": {counts}" if counts else "")


def table(runs: Sequence[Glance], width: int, now: float) -> Table:
    """A row a run. The directory is shown whole where it fits, else the last part of its hash, else not."""
    columns: list[tuple[str, bool, Callable[[Glance], str]]] = [
        ("status", False, lambda run: visible(run.state)),
        ("encoding", False, lambda run: visible(run.encoding or "-")),
        ("seed", True, lambda run: "-" if run.run.seed is None else str(run.run.seed)),
        ("T", True, lambda run: "-" if run.context_length is None else str(run.context_length)),
        ("tokens", True, progress),
        ("tok/s", True, lambda run: _or_dash(run.tokens_per_second, lambda rate: count(round(rate)))),
        ("age", True, lambda run: _or_dash(run.written, lambda at: age(now - at))),
        ("at T", True, lambda run: _or_dash(run.at_train_length, _loss)),
        ("longest", True, lambda run: _or_dash(run.longest, lambda one: f"{_loss(one[1])} {length(one[0])}")),
    ]
    cells = [[text(run) for _, _, text in columns] for run in runs]
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, (head, _, _) in enumerate(columns)]
    room = width - sum(widths) - GAP * len(widths)
    paths = [visible(run.run.path) for run in runs]
    endings = [visible(run.run.name)[-8:] for run in runs]
    last = next((some for some in (paths, endings) if max([3, *map(len, some)]) <= room), None)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    for i, (head, right, _) in enumerate(columns):
        drawn.add_column(head, justify="right" if right else "left", no_wrap=True, min_width=widths[i])
    if last is not None:
        drawn.add_column("run", no_wrap=True)
    for run, row, name in zip(runs, cells, last or paths, strict=True):
        state = Text(row[0], style=STYLES.get(run.state, "red"))
        drawn.add_row(state, *map(Text, row[1:]), *([Text(name)] if last is not None else []))
    return drawn


def notes(runs: Sequence[Glance], now: float) -> list[str]:
    """Lines for every run that is not finished: where it stands, why it stopped, what continues it."""
    lines = []
    for run in runs:
        if run.state == "finished":
            continue
        lines.append(visible(f"{run.run.path}: {_says(run, now)}"))
        if run.state not in ("running", "damaged") and (run.run.path / "log.txt").is_file():
            lines.append(visible(f"  log: {run.run.path / 'log.txt'}"))
        if run.state in AGAIN:
            lines.append(visible(f"  continue: {_continued(run)}"))
    return lines


def document(runs: Sequence[Glance]) -> str:
    """One JSON document with everything that is known of each run."""
    found = Counter(run.state for run in runs)
    return json.dumps(
        {"schema_version": 1, "counts": dict(found), "runs": [_plain(run) for run in runs]}, indent=2
    )


def _plain(run: Glance) -> dict[str, Any]:
    longest = run.longest
    return {
        "path": str(run.run.path),
        "status": run.state,
        "reason": run.reason,
        "encoding": run.encoding,
        "seed": run.run.seed,
        "context_length": run.context_length,
        "tokens": run.tokens,
        "tokens_asked": run.tokens_asked,
        "tokens_per_second": run.tokens_per_second,
        "training_loss": run.training_loss,
        "seconds_left": run.seconds_left if run.state == "running" else None,
        "written": run.written,
        "host": run.run.status.get("host"),
        "pid": run.run.status.get("pid"),
        "nats_at_train_length": run.at_train_length,
        "longest_multiple": None if longest is None else longest[0],
        "nats_at_longest": None if longest is None else longest[1],
        "continue": _continued(run) if run.state in AGAIN else None,
    }


def _says(run: Glance, now: float) -> str:
    if run.state == "running":
        parts = [f"running, process {run.run.status.get('pid', '?')} on {run.run.status.get('host', '?')}"]
        if run.training_loss is not None:
            parts.append(f"training loss {_loss(run.training_loss)}")
        if run.seconds_left:
            parts.append(f"about {clock(run.seconds_left)} of training left")
        if run.written is not None and now - run.written > 600:
            parts.append(f"nothing written for {age(now - run.written)}")
        return ", ".join(parts)
    if run.state == "dead":
        return f"killed: its process {run.run.status.get('pid', '?')} is gone and left no word"
    return run.state + (f", {run.reason}" if run.reason else "")


def _continued(run: Glance) -> str:
    found = command_again(run.run.config, run.run.path) if run.run.config else None
    return found or "the command that began it (its encoding or corpus is a YAML of your own)"


def _loss(nats: float) -> str:
    return f"{nats:.3f}"


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)
