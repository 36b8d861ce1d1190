"""What is on disk, for `posenc runs`: what fits the width, notes on what did not finish, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from posenc.core.console import clock
from posenc.core.errors import visible
from posenc.report.words import length
from posenc.results.resume_command import resume_command
from posenc.results.run_summary import RunSummary

STYLES = {"finished": "green", "running": "cyan", "interrupted": "yellow", "dead": "red", "failed": "red"}
ORDER = ("finished", "running", "interrupted", "failed", "diverged", "dead", "damaged", "unknown")
AGAIN = ("dead", "interrupted", "failed")  # what the same command may still finish
GAP = 2
LEFT = ("status", "encoding")
LESS = ("age", "tok/s", "T", "tokens")  # left out in this order where the width is too small
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


def progress(run: RunSummary) -> str:
    """Tokens trained on, and of how many where that is not all."""
    if run.tokens is None:
        return "-"
    if run.tokens_asked and run.tokens < 0.999 * run.tokens_asked:
        return f"{count(run.tokens)}/{count(run.tokens_asked)}"
    return count(run.tokens)


def summary(runs: Sequence[RunSummary]) -> str:
    """`25 runs: 20 finished, 5 failed`."""
    found = Counter(run.state for run in runs)
    states = sorted(found, key=lambda state: ORDER.index(state) if state in ORDER else len(ORDER))
    counts = ", ".join(f"{found[state]} {visible(state)}" for state in states)
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}" + (f": {counts}" if counts else "")


def table(runs: Sequence[RunSummary], width: int, now: float) -> RenderableType:
    """A row a run: where `width` is too small without the columns of LESS, then as lines for each run.

    The directory is shown as its path where that fits, else as its name, else as the end of its hash.
    """
    columns: dict[str, Callable[[RunSummary], str]] = {
        "status": lambda run: visible(run.state),
        "encoding": lambda run: visible(run.encoding or "-"),
        "seed": lambda run: "-" if run.run.seed is None else str(run.run.seed),
        "T": lambda run: "-" if run.context_length is None else str(run.context_length),
        "tokens": progress,
        "tok/s": lambda run: _or_dash(run.tokens_per_second, lambda rate: count(round(rate))),
        "age": lambda run: _or_dash(run.written, lambda at: age(now - at)),
        "at T": lambda run: _or_dash(run.at_train_length, _loss),
        "longest": lambda run: _or_dash(run.longest, lambda one: f"{_loss(one[1])} {length(one[0])}"),
    }
    cells = {head: [text(run) for run in runs] for head, text in columns.items()}
    names = _names(runs)
    for dropped in range(len(LESS) + 1):
        kept = {head: texts for head, texts in cells.items() if head not in LESS[:dropped]}
        room = width - sum(_widest(head, *texts) + GAP for head, texts in kept.items())
        for some in names:
            if _widest("run", *some) <= room:
                return _grid(kept, some)
    fitting = next((some for some in names if _widest(*some) <= width), names[-1])
    return Group(*(_block(cells, i, name, width) for i, name in enumerate(fitting)))


def notes(runs: Sequence[RunSummary], now: float) -> list[str]:
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
        elif run.state == "diverged":  # which is final
            lines.append(visible(f"  again from the start: {_continued(run, '--retry')}"))
    return lines


def document(runs: Sequence[RunSummary]) -> str:
    """One JSON document with everything that is known of each run."""
    found = Counter(run.state for run in runs)
    return json.dumps(
        {"schema_version": 1, "counts": dict(found), "runs": [_plain(run) for run in runs]}, indent=2
    )


def _names(runs: Sequence[RunSummary]) -> list[list[str]]:
    """What tells the directories apart beside their encoding and seed, the longest first."""
    names = [visible(run.run.name) for run in runs]
    beside = [(run.encoding, run.run.seed) for run in runs]
    shorter = [names, [name[-8:] for name in names]]
    apart = [some for some in shorter if len(set(zip(beside, some, strict=True))) == len(some)]
    return [[visible(run.run.path) for run in runs], *apart]


def _grid(cells: dict[str, list[str]], names: list[str]) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    for head in cells:
        drawn.add_column(head, justify="left" if head in LEFT else "right", no_wrap=True)
    drawn.add_column("run", no_wrap=True)
    for state, *row, name in zip(*cells.values(), names, strict=True):
        drawn.add_row(Text(state, style=STYLES.get(state, "red")), *map(Text, row), Text(name))
    return drawn


def _block(cells: dict[str, list[str]], i: int, name: str, width: int) -> Text:
    """The directory and below it all that is known, broken only between two facts where each fits a line."""
    state = cells["status"][i]
    lines = [state]
    for head, texts in cells.items():
        if head == "status" or texts[i] == "-":
            continue
        fact = texts[i] if head in LEFT else f"{head} {texts[i]}"
        if cell_len(f"  {lines[-1]}, {fact},") <= width:
            lines[-1] += f", {fact}"
        else:
            lines[-1] += ","
            lines.append(fact)
    text = Text(f"{name}\n  " + "\n  ".join(lines), overflow="fold")
    text.stylize(STYLES.get(state, "red"), len(name) + 3, len(name) + 3 + len(state))
    return text


def _widest(*texts: str) -> int:
    return max(map(cell_len, texts), default=0)


def _plain(run: RunSummary) -> dict[str, Any]:
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


def _says(run: RunSummary, now: float) -> str:
    if run.state == "running":
        parts = [f"running, process {run.run.status.get('pid', '?')} on {run.run.status.get('host', '?')}"]
        if run.training_loss is not None:
            parts.append(f"training loss {_loss(run.training_loss)}")
        if run.seconds_left:
            parts.append(f"about {clock(run.seconds_left)} of training left")
        if run.written is not None and now - run.written > 600:
            parts.append(f"nothing written for {age(now - run.written)}")
        return ", ".join(parts)
    return run.state + (f", {run.reason}" if run.reason else "")


def _continued(run: RunSummary, *flags: str) -> str:
    found = resume_command(run.run.config, run.run.path) if run.run.config else None
    begun = "the command that began it"
    why = " (its encoding or corpus is a YAML of your own)"
    return " ".join((found or begun, *flags)) + ("" if found else why)


def _loss(nats: float) -> str:
    return f"{nats:.3f}"


def _or_dash(value: Any, text: Callable[[Any], str]) -> str:
    return "-" if value is None else text(value)
