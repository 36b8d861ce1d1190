"""Write what is on disk, for `posenc runs`, and what did not finish, for every command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from posenc.core.console import clock
from posenc.core.errors import visible
from posenc.report.captions import length, millions, plural
from posenc.report.table import CellText, Table
from posenc.report.writers import column_width, fitting, table_lines
from posenc.results.load import Run, RunSummary, resume_command

FINISHED, DIVERGED = "finished", "diverged"
ORDER = (FINISHED, "running", "interrupted", "failed", DIVERGED, "dead", "damaged", "unknown")
RESUMABLE = ("dead", "interrupted", "failed")  # by the same command
LEFT = ("experiment", "encoding", "model", "run")
LESS = ("age", "tok/s", "tokens", "model", "experiment")  # left out in this order where the width is small
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


# --- all runs


def summary(runs: Sequence[RunSummary]) -> str:
    """Return `25 runs: 20 finished, 5 failed`."""
    found = Counter(run.state for run in runs)
    states = sorted(found, key=lambda state: ORDER.index(state) if state in ORDER else len(ORDER))
    counts = ", ".join(f"{found[state]} {visible(state)}" for state in states)
    return plural(len(runs), "run") + (f": {counts}" if counts else "")


def table(runs: Sequence[RunSummary], width: int, now: float) -> list[Text]:
    """Return a line a run below the heads, without the columns of LESS where `width` is too small.

    The directory is shown as its path where that fits, else as its name, else as the end of its hash.
    """
    facts = [_facts(run, now) for run in runs]
    heads = [*facts[0], "run"]
    left, drop = tuple(heads.index(head) for head in LEFT), [heads.index(head) for head in LESS]
    for shown in (lambda run: str(run.path), lambda run: run.name, lambda run: run.name[-8:]):
        texts = [[*row.values(), shown(one.run)] for row, one in zip(facts, runs, strict=True)]
        found = Table(heads, [[CellText(text or "-") for text in row] for row in texts], left=left, drop=drop)
        if sum(column_width(found, i) + 2 for i in range(len(heads))) - 2 <= width:
            break
    lines = list(table_lines(fitting(found, width)[0], width))
    for line in lines:
        line.rstrip()
    return lines


def notes(runs: Sequence[RunSummary], now: float) -> list[str]:
    """Return lines for every run that is not finished: its state, why it stopped, what resumes it."""
    lines = []
    for run in runs:
        if run.state == FINISHED:
            continue
        log = run.run.path / "log.txt"
        logged = run.state not in ("running", "damaged") and log.is_file()
        lines.append(f"{run.run.path}: {_state_of(run, now)}" + (f" (log: {log})" if logged else ""))
        if run.state in RESUMABLE:
            lines.append(f"  resume: {_command(run)}")
        elif run.state == DIVERGED:
            lines.append(f"  again from the start: {_command(run)} --retry")
    return [visible(line) for line in lines]


def document(runs: Sequence[RunSummary]) -> str:
    """Return one JSON document with everything that is known of each run."""
    counts = dict(Counter(run.state for run in runs))
    return json.dumps({"schema_version": 1, "counts": counts, "runs": [*map(_plain, runs)]}, indent=2)


def age(seconds: float) -> str:
    """Return `3d`, `12m`: the largest unit that fits."""
    return next((f"{int(seconds // size)}{unit}" for size, unit in UNITS if seconds >= size), "now")


def _facts(run: RunSummary, now: float) -> dict[str, str | None]:
    """Return the cells of a run by their column; None where nothing is known."""
    speed, longest, at_t = run.tokens_per_second, run.longest, run.at_train_length
    return {
        "status": run.state,
        "experiment": run.experiment,
        "encoding": run.encoding,
        "model": run.model,
        "T": None if run.context_length is None else str(run.context_length),
        "seed": None if run.run.seed is None else str(run.run.seed),
        "tokens": _progress(run),
        "tok/s": None if speed is None else millions(round(speed)),
        "age": None if run.written is None else age(now - run.written),
        "at T": None if at_t is None else f"{at_t:.3f}",
        "longest": None if longest is None else f"{longest[1]:.3f} {length(longest[0])}",
    }


def _progress(run: RunSummary) -> str:
    """Return the tokens trained on, and of how many where that is not all."""
    if run.tokens is None:
        return "-"
    if run.tokens_asked and run.tokens < 0.999 * run.tokens_asked:
        return f"{millions(run.tokens)}/{millions(run.tokens_asked)}"
    return millions(run.tokens)


def _plain(run: RunSummary) -> dict[str, Any]:
    longest_multiple, nats_at_longest = run.longest or (None, None)
    own = {key: value for key, value in vars(run).items() if key not in ("run", "state", "losses")}
    return {
        "path": str(run.run.path),
        "status": run.state,
        "seed": run.run.seed,
        **own,
        "seconds_left": run.seconds_left if run.state == "running" else None,
        "host": run.run.status.get("host"),
        "pid": run.run.status.get("pid"),
        "nats_at_train_length": run.at_train_length,
        "longest_multiple": longest_multiple,
        "nats_at_longest": nats_at_longest,
        "continue": _command(run) if run.state in RESUMABLE else None,
    }


def _state_of(run: RunSummary, now: float) -> str:
    if run.state != "running":
        return run.state + (f", {run.reason}" if run.reason else "")
    parts = [f"running, {_process(run.run)}"]
    if run.training_loss is not None:
        parts.append(f"training loss {run.training_loss:.3f}")
    if run.seconds_left:
        parts.append(f"about {clock(run.seconds_left)} of training left")
    if run.written is not None and now - run.written > 600:
        parts.append(f"nothing written for {age(now - run.written)}")
    return ", ".join(parts)


def _command(run: RunSummary) -> str:
    found = resume_command(run.run)
    return found or "the command that began it"


def _process(run: Run) -> str:
    return f"process {run.status.get('pid', '?')} on {run.status.get('host', '?')}"


def unfinished_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for every run that is not finished (name, state, reason, log), and how to resume."""
    lines = []
    for run in runs:
        if run.state == FINISHED:
            continue
        reason = run.reason or (f"by {_process(run)}" if run.state == "running" else "")
        words = reason if reason.startswith(run.state) else ", ".join(filter(None, [run.state, reason]))
        log = f" (log: {run.path / 'log.txt'})" if (run.path / "log.txt").is_file() else ""
        lines.append(visible(f"{run.name}: {words}{log}"))
    if any(run.state in RESUMABLE for run in runs):
        lines.append("to resume: the same command, or what posenc runs shows")
    return lines
