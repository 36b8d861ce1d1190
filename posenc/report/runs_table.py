"""List run directories, for `posenc runs`, and say what did not finish, for every command."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.core.errors import UserError, nearest, plural, suggestion, visible
from posenc.core.quantities import clock, length_text
from posenc.core.run_states import DIVERGED, FINISHED, RESUMABLE, RUNNING, STATES
from posenc.report.tables import Table, TableColumn, text_column
from posenc.report.texts import count_text
from posenc.results.runs import Run
from posenc.results.summary import RunSummary, summarize
from posenc.results.where import value_of_key

UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
SILENT = 600  # seconds after which a running run that writes nothing is worth a note
FINGERPRINT = 6  # hex digits that tell two texts of one name apart
# A run with more than this share of its tokens is complete: the last step may fall short by a part of a
# batch.
COMPLETE_SHARE = 0.999


def state_counts(runs: Sequence[RunSummary]) -> str:
    """Return `25 runs: 20 finished, 5 failed`."""
    number_of = Counter(run.status for run in runs)
    unknown = [status for status in number_of if status not in STATES]
    in_order = [status for status in (*STATES, *unknown) if number_of[status]]
    parts = [f"{number_of[status]} {visible(status)}" for status in in_order]
    total = plural(len(runs), "run")
    return f"{total}: {', '.join(parts)}" if parts else total


# --- the table


@dataclass(frozen=True)
class ListedRun:
    """A run with its summary."""

    run: Run
    summary: RunSummary


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """A column of `posenc runs`, which `--columns` takes by its name."""

    name: str
    text: Callable[[RunSummary], str | None]  # None where nothing is known
    head: str = ""  # empty: the name
    is_words: bool = False
    drop_rank: int | None = None  # a table that is too wide drops the lowest rank first; None: never
    is_optional: bool = False  # not in the table unless the runs differ in it, or --columns names it


# A column in which all runs agree is dropped before all others: it does not tell runs apart.
AGREEING = -100


def run_table(runs: Sequence[ListedRun], now: float, names: Sequence[str] = ()) -> Table:
    """Return a line for each run, with the columns `names`; without any those that tell the runs apart.

    Raises UserError for a name that is neither a column nor a setting of any run.
    """
    # Named columns are never dropped: a user who asks for a column wants it, however narrow the screen is.
    if names:
        return Table(tuple(_named_column(name, runs, now) for name in names))
    columns = []
    for column in _columns(runs, now):
        texts = [column.text(listed.summary) or "-" for listed in runs]
        is_shared = len(set(texts)) == 1
        agree = is_shared and len(runs) > 1
        if is_shared and (column.is_optional or texts[0] == "-"):
            continue
        rank = column.drop_rank
        if agree:
            rank = AGREEING + (rank or 0)
        head = column.head or column.name
        columns.append(text_column(head, texts, is_words=column.is_words, drop_rank=rank))
    return Table(tuple(columns))


def _named_column(name: str, runs: Sequence[ListedRun], now: float) -> TableColumn:
    """Return a column by its name or by the key of a setting. Raises UserError."""
    columns = {column.name: column for column in _columns(runs, now)}
    if name in columns:
        column = columns[name]
        texts = [column.text(listed.summary) or "-" for listed in runs]
        return text_column(column.head or name, texts, is_words=column.is_words)
    values = [value_of_key(listed.run, name) for listed in runs]
    if all(value is None for value in values):
        allowed = f"{', '.join(columns)}, or a setting: train.lr"
        # Suggested by hand, since the settings of all runs would make a list that fills the screen.
        close = nearest(name, list(columns))
        hint = "" if close is None else suggestion(close)
        raise UserError("--columns", visible(name), "no such column", allowed=allowed, hint=hint)
    return text_column(visible(name), [visible(value or "-") for value in values], is_words=True)


def _columns(runs: Sequence[ListedRun], now: float) -> tuple[RunColumn, ...]:
    """Return the columns; the age of a run is that at the time `now`.

    The encoding may be dropped early, since the names of most runs begin with it.
    """
    fingerprints: dict[str | None, set[str | None]] = defaultdict(set)
    for listed in runs:
        fingerprints[listed.summary.corpus].add(listed.summary.fingerprint)

    def age_text(run: RunSummary) -> str | None:
        return None if run.written is None else age(now - run.written)

    def corpus_text(run: RunSummary) -> str | None:
        """Return the name, with the beginning of the fingerprint where one name stands for two texts."""
        is_ambiguous = len(fingerprints[run.corpus] - {None}) > 1
        if run.fingerprint is None or not is_ambiguous:
            return run.corpus
        return f"{run.corpus} {run.fingerprint[:FINGERPRINT]}"

    return (
        RunColumn(name="status", text=lambda run: run.status),
        RunColumn(name="experiment", text=lambda run: run.experiment, is_words=True, drop_rank=4),
        RunColumn(name="encoding", text=lambda run: run.encoding, is_words=True, drop_rank=5),
        RunColumn(name="model", text=lambda run: run.model, is_words=True, drop_rank=3),
        RunColumn(name="T", text=lambda run: _text_of(run.context_length)),
        RunColumn(name="seed", text=lambda run: _text_of(run.seed)),
        RunColumn(name="tokens", text=_tokens_text, drop_rank=9),
        RunColumn(
            name="precision", text=lambda run: run.precision, is_words=True, drop_rank=7, is_optional=True
        ),
        RunColumn(name="corpus", text=corpus_text, is_words=True, drop_rank=8, is_optional=True),
        RunColumn(name="speed", head="tok/s", text=_speed_text, drop_rank=1),
        RunColumn(name="age", text=age_text, drop_rank=0),
        RunColumn(name="loss", head="at T", text=_loss_at_t_text),
        RunColumn(name="longest", text=_longest_text, drop_rank=6),
        # The name is last, since it is the longest text. It has no rank, since it is what the other commands
        # take.
        RunColumn(name="run", text=lambda run: Path(run.path).name, is_words=True),
    )


def _text_of(value: object) -> str | None:
    return None if value is None else str(value)


def _tokens_text(run: RunSummary) -> str | None:
    """Return `3.2M/4M`, or `4M` if the run was trained on all of its tokens."""
    tokens = run.tokens
    if tokens is None:
        return None
    is_complete = not run.tokens_asked or tokens >= COMPLETE_SHARE * run.tokens_asked
    if is_complete:
        return count_text(tokens)
    return f"{count_text(tokens)}/{count_text(run.tokens_asked)}"


def _speed_text(run: RunSummary) -> str | None:
    speed = run.tokens_per_second
    return None if speed is None else count_text(round(speed))


def _loss_at_t_text(run: RunSummary) -> str | None:
    loss = run.nats_at_train_length
    return None if loss is None else f"{loss:.3f}"


def _longest_text(run: RunSummary) -> str | None:
    if run.nats_at_longest is None or run.longest_multiple is None:
        return None
    return f"{run.nats_at_longest:.3f} {length_text(run.longest_multiple)}"


# --- what did not finish


def run_notes(runs: Sequence[RunSummary], now: float) -> list[str]:
    """Return lines for every run that is not finished: its state, why it stopped, what resumes it."""
    lines = []
    for run in runs:
        if run.status == FINISHED:
            continue
        lines.append(_line(run, run.path, _progress(run, now)))
        if run.continue_:
            verb = "again from the start" if run.status == DIVERGED else "resume"
            lines.append(f"  {verb}: {run.continue_}")
    return [visible(line) for line in lines]


def _progress(run: RunSummary, now: float) -> list[str]:
    parts = []
    if run.status == RUNNING and run.training_loss is not None:
        parts.append(f"training loss {run.training_loss:.3f}")
    if run.seconds_left:
        parts.append(f"about {clock(run.seconds_left)} of training left")
    # A process may hang, or its machine may be gone. Only the silence tells such a run from a run that
    # trains.
    if run.status == RUNNING and run.written is not None and now - run.written > SILENT:
        parts.append(f"nothing written for {age(now - run.written)}")
    return parts


def unfinished_lines(runs: Sequence[Run]) -> list[str]:
    """Return a line for every run that is not finished (name, state, reason, log), and how to resume."""
    unfinished = [run for run in runs if run.state != FINISHED]
    lines = [visible(_line(summarize(run), run.name)) for run in unfinished]
    if any(run.state in RESUMABLE for run in unfinished):
        lines.append("to resume: the same command, or what posenc runs shows")
    return lines


def _line(run: RunSummary, name: str, progress: Sequence[str] = ()) -> str:
    """Return `name: state, reason (log: ...)`."""
    reason = run.reason or ""
    if run.status == RUNNING:
        reason = f"process {run.pid or '?'} on {run.host or '?'}"
    # "failed, failed in step 3" would say it twice
    state = "" if reason.startswith(run.status) else run.status
    parts = [part for part in (state, reason, *progress) if part]
    line = f"{name}: {', '.join(parts)}"
    log = Path(run.path) / "log.txt"
    return f"{line} (log: {log})" if log.is_file() else line


# --- JSON


def runs_json(runs: Sequence[RunSummary]) -> str:
    """Return one JSON document with everything that is known of each run."""
    states = Counter(run.status for run in runs)
    lines = [run.to_dict() for run in runs]
    return json.dumps({"schema_version": 1, "counts": states, "runs": lines}, indent=2)


def age(seconds: float) -> str:
    """Return `3d`, `12m`: the largest unit that fits."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "now"
