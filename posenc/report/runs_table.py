"""Summarise run directories, for `posenc runs`, and say what did not finish, for every command."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.core.console import clock
from posenc.core.errors import plural, visible
from posenc.report.tables import Table, text_column
from posenc.report.texts import count_text, length_text
from posenc.results.measurements import select
from posenc.results.records import HEADLINE
from posenc.results.runs import Run, encoding_name, last_metrics, resume_command

FINISHED, RUNNING, DIVERGED = "finished", "running", "diverged"
ORDER = (FINISHED, RUNNING, "interrupted", "failed", DIVERGED, "dead", "damaged", "unknown")
RESUMABLE = ("dead", "interrupted", "failed")  # by the same command
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
Summary = Mapping[str, Any]


def run_summary(run: Run) -> dict[str, Any]:
    """Return what is known of a run directory. Tokens, nats per token; null where it is not known."""
    facts: dict[str, Any] = dict(run.facts or {})
    config, last, state = run.config or {}, last_metrics(run.path), run.state
    train = config.get("train")
    asked: float | None = _number(train.get("tokens")) if isinstance(train, dict) else None
    tokens = _number(last.get("tokens", facts.get("tokens")))
    if state == FINISHED:
        tokens = asked = _number(facts.get("tokens"))
    elif tokens is None and asked and run.problem is None:
        tokens = 0.0
    speed = _number(facts.get("tokens_per_second") or last.get("tokens_per_second"))
    left = (asked - tokens) / speed if asked and speed and tokens is not None else None
    losses = headline_losses(run)
    longest = max((multiple for multiple in losses if multiple > 1), default=None)
    command = resume_command(run) or "the command that began it"
    return {
        "path": str(run.path),
        "status": state,
        "seed": run.seed,
        "reason": run.reason,
        "experiment": config.get("experiment_name", run.path.parent.name) or None,
        "encoding": run.encoding,
        "model": encoding_name(facts.get("model", config.get("model"))),
        "context_length": _whole(facts.get("context_length", config.get("context_length"))),
        "tokens": _whole(tokens),
        "tokens_asked": _whole(asked),
        "tokens_per_second": speed,
        "training_loss": _number(last.get("loss", facts.get("final_loss"))),
        "written": _written(run),
        "seconds_left": max(0.0, left) if left is not None and state == RUNNING else None,
        "host": run.status.get("host"),
        "pid": run.status.get("pid"),
        "nats_at_train_length": losses.get(1.0),
        "longest_multiple": longest,
        "nats_at_longest": losses.get(longest or 0.0),
        "continue": command if state in RESUMABLE else f"{command} --retry" if state == DIVERGED else None,
    }


def headline_losses(run: Run) -> dict[float, float]:
    """Return the losses as trained that `posenc compare` shows, by multiple of T."""
    trained = [one for one in select([run], HEADLINE) if one.extension is None]
    cells = {multiple: record for one in trained for multiple, record in one.at.items()}
    return {multiple: one.nats for multiple, one in cells.items() if one.nats is not None and not one.note}


def _written(run: Run) -> float | None:
    """Return when something was last written, in seconds since the epoch."""
    times = []
    with contextlib.suppress(OSError):
        times.append((run.path / "metrics.jsonl").stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        times.append(datetime.fromisoformat(str(run.status.get("updated"))).timestamp())
    return max(times, default=None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


# --- all runs


def counts(runs: Sequence[Summary]) -> str:
    """Return `25 runs: 20 finished, 5 failed`."""
    found = Counter(run["status"] for run in runs)
    states = sorted(found, key=lambda state: ORDER.index(state) if state in ORDER else len(ORDER))
    listed = ", ".join(f"{found[state]} {visible(state)}" for state in states)
    return plural(len(runs), "run") + (f": {listed}" if listed else "")


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """A column of `posenc runs`."""

    head: str
    text: Callable[[Summary], str | None]  # None where nothing is known
    is_words: bool = False
    leaves: int | None = None  # where the width is too small: the lowest goes first; None: it stays


def run_table(runs: Sequence[Summary], now: float) -> Table:
    """Return a line for each run."""
    columns = []
    for column in _columns(now):
        texts = [column.text(run) or "-" for run in runs]
        columns.append(text_column(column.head, texts, is_words=column.is_words, leaves=column.leaves))
    return Table(tuple(columns))


def _columns(now: float) -> tuple[RunColumn, ...]:
    def age_text(run: Summary) -> str | None:
        return None if run["written"] is None else age(now - run["written"])

    return (
        RunColumn(head="status", text=lambda run: run["status"]),
        RunColumn(head="experiment", text=lambda run: run["experiment"], is_words=True, leaves=4),
        RunColumn(head="encoding", text=lambda run: run["encoding"], is_words=True),
        RunColumn(head="model", text=lambda run: run["model"], is_words=True, leaves=3),
        RunColumn(head="T", text=lambda run: _text_of(run["context_length"])),
        RunColumn(head="seed", text=lambda run: _text_of(run["seed"])),
        RunColumn(head="tokens", text=_tokens_text, leaves=2),
        RunColumn(head="tok/s", text=_speed_text, leaves=1),
        RunColumn(head="age", text=age_text, leaves=0),
        RunColumn(head="at T", text=_loss_at_t_text),
        RunColumn(head="longest", text=_longest_text),
        RunColumn(head="run", text=lambda run: Path(run["path"]).name, is_words=True),
    )


def _text_of(value: object) -> str | None:
    return None if value is None else str(value)


def _tokens_text(run: Summary) -> str | None:
    """Return `3.2M/4M`, or `4M` where all tokens that were asked for are trained on."""
    tokens = run["tokens"]
    planned = run["tokens_asked"]
    if tokens is None:
        return None
    is_part = planned and tokens < 0.999 * planned
    return f"{count_text(tokens)}/{count_text(planned)}" if is_part else count_text(tokens)


def _speed_text(run: Summary) -> str | None:
    speed = run["tokens_per_second"]
    return None if speed is None else count_text(round(speed))


def _loss_at_t_text(run: Summary) -> str | None:
    loss = run["nats_at_train_length"]
    return None if loss is None else f"{loss:.3f}"


def _longest_text(run: Summary) -> str | None:
    loss = run["nats_at_longest"]
    return None if loss is None else f"{loss:.3f} {length_text(run['longest_multiple'])}"


def notes(runs: Sequence[Summary], now: float) -> list[str]:
    """Return lines for every run that is not finished: its state, why it stopped, what resumes it."""
    lines = []
    for run in runs:
        state, written = run["status"], run["written"]
        if state == FINISHED:
            continue
        parts = []
        if state == RUNNING and run["training_loss"] is not None:
            parts.append(f"training loss {run['training_loss']:.3f}")
        if run["seconds_left"]:
            parts.append(f"about {clock(run['seconds_left'])} of training left")
        if state == RUNNING and written is not None and now - written > 600:
            parts.append(f"nothing written for {age(now - written)}")
        lines.append(_line(run, run["path"], parts))
        if run["continue"]:
            lines.append(f"  {'again from the start' if state == DIVERGED else 'resume'}: {run['continue']}")
    return [visible(line) for line in lines]


def document(runs: Sequence[Summary]) -> str:
    """Return one JSON document with everything that is known of each run."""
    states = Counter(run["status"] for run in runs)
    return json.dumps({"schema_version": 1, "counts": states, "runs": list(runs)}, indent=2)


def age(seconds: float) -> str:
    """Return `3d`, `12m`: the largest unit that fits."""
    return next((f"{int(seconds // size)}{unit}" for size, unit in UNITS if seconds >= size), "now")


def unfinished_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for every run that is not finished (name, state, reason, log), and how to resume."""
    left = [run for run in runs if run.state != FINISHED]
    lines = [visible(_line(run_summary(run), run.name)) for run in left]
    if any(run.state in RESUMABLE for run in left):
        lines.append("to resume: the same command, or what posenc runs shows")
    return lines


def _line(run: Summary, name: str, more: Sequence[str] = ()) -> str:
    """Return `name: state, reason (log: ...)`."""
    state, reason, log = run["status"], run["reason"] or "", Path(run["path"]) / "log.txt"
    if state == RUNNING:
        reason = f"process {run['pid'] or '?'} on {run['host'] or '?'}"
    words = ", ".join(filter(None, ["" if reason.startswith(state) else state, reason, *more]))
    return f"{name}: {words}" + (f" (log: {log})" if log.is_file() else "")
