"""Define what all trackers do alike: the curves, one warning, nothing twice, and never an exception."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic
from posenc.core.errors import RunError, visible
from posenc.results.records import Record
from posenc.tracking.curves import (
    STEP,
    Row,
    curve_points,
    measurement_key,
    rows_by_axis,
    summary_of,
)

logger = logging.getLogger(__name__)
# in the run directory
STATE_FOLDER = "tracking"  # what each tracker has of the run
EVENTS_FOLDER = "tensorboard"
TRACKED_ID = re.compile(r"[a-z0-9]{8,64}")
LONGEST_ERROR = 200  # characters
# kinds of tracked runs
TRAINING = "train"
COMPARISON = "comparison"


class Tracker:
    """Copy the numbers of a run elsewhere. This one does nothing. No method of a tracker ever raises."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log the numbers of one training step. A name without a slash is shown under `train/`.

        A step that was logged before the run was stopped is not logged again.
        """

    def log_evaluation(self, records: list[Record]) -> None:
        """Log the records of `results.json`, after the last step, without those that were logged before."""

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table under a name, in the place of the one that was logged under it before."""

    def finish(self, status: str) -> None:
        """End the tracked run. Every status but `finished` marks it as failed."""


@dataclass(frozen=True)
class TrackedRun:
    """Hold what a tracker shows of a run."""

    name: str
    group: str | None  # what the runs of one sweep have in common
    tags: Sequence[str]
    config: Mapping[str, Any]  # the settings as plain resolved data, without secrets
    directory: Path
    kind: str = TRAINING  # or COMPARISON: the summary run of a sweep


@dataclass
class TrackerState:
    """Hold what a tracker has of a run, in `tracking/<tracker>.json`. A resumed run goes on from there."""

    id: str  # the tracker's own name of the run
    group: str | None  # the first group of the run: a later evaluation does not move it
    step: int = -1  # the last step that was sent
    sent: list[str] = field(default_factory=list)  # keys of the measurements that were sent
    project: str | None = None  # where the run is, for trackers that have projects

    @classmethod
    def new(cls, group: str | None) -> TrackerState:
        """Return the state of a run that no tracker has seen."""
        # a random id: one made from the run's hash would be the same for everybody who trains the same
        return cls(secrets.token_hex(6), group)

    @classmethod
    def read(cls, file: Path) -> TrackerState | None:
        """Return the state in a file; None if there is no file, or one that posenc did not write."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            state = cls(values["id"], values["group"], int(values["step"]), list(values["sent"]))
            state.project = values.get("project")  # older states have none
            is_id = TRACKED_ID.fullmatch(state.id)  # it becomes a part of paths
        # A damaged state begins a new tracked run, which costs a second line on a dashboard. An error would
        # cost the run.
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return state if is_id else None


class BaseTracker(Tracker):
    """Track a run until the first exception, which switches the tracker off with a warning.

    A tracker's keyword-only parameters are the keys of its YAML. It implements `send` and `end`.
    """

    label = ""  # the name of the tracker in messages
    has_tables = False  # whether it shows tables, for the summary run of a sweep

    def __init__(self, run: TrackedRun, name: str) -> None:
        self.run = run
        self._file = run.directory / STATE_FOLDER / f"{name}.json"
        stored = TrackerState.read(self._file)
        self.resumed = stored is not None
        self.state = TrackerState.new(run.group) if stored is None else stored
        self._is_on = True
        self._is_finished = False

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for values that the tracker does not take."""

    def send(self, row: Row, axis: str, x: int) -> None:
        """Send figures at `x` on an axis: STEP, WINDOW or POSITION."""
        raise NotImplementedError

    def send_summary(self, row: Row) -> None:
        """Send the figures by which people compare runs."""
        self.send(row, STEP, max(self.state.step, 0))

    def send_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Send a table. Only trackers with `has_tables` are asked to."""
        raise NotImplementedError

    def end(self, status: str) -> None:
        """Flush and close."""
        raise NotImplementedError

    def advice(self) -> str:
        """Return what to do about figures that were not sent; it starts with a space."""
        return ""

    def save(self) -> None:
        """Write the state. If that fails, tracking goes on without it."""
        with suppress(OSError, RunError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(self._file, asdict(self.state))

    def log(self, metrics: dict[str, float], step: int) -> None:
        if step <= self.state.step:
            return
        row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
        self._send_and_save(lambda: self.send(row, STEP, step), step, [])

    def log_evaluation(self, records: list[Record]) -> None:
        # All records make the curves, also those that were sent before: the most frequent stride is that of
        # all of them.
        points = curve_points(records, self.run.config)
        new_points = [point for point in points if measurement_key(point.record) not in self.state.sent]
        if not new_points:
            return

        def send_new_points() -> None:
            for axis, rows in rows_by_axis(new_points).items():
                for x, row in rows.items():
                    self.send(row, axis, x)
            # The summary is of all lengths, also of those that were sent before.
            self.send_summary(summary_of(points))

        new_keys = [measurement_key(point.record) for point in new_points]
        self._send_and_save(send_new_points, self.state.step, new_keys)

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if self._is_on and self.has_tables:
            self._try(lambda: self.send_table(name, columns, rows), "did not get the comparison")

    def finish(self, status: str) -> None:
        if not self._is_finished:
            self._is_finished = True
            # Also after a failure: what was sent before it still has to be flushed.
            self._try(lambda: self.end(status), "did not get everything")
        self._is_on = False

    def _send_and_save(self, send: Callable[[], None], step: int, measurements: list[str]) -> None:
        """Send something, and save that it was sent. A failure is not saved: a resumed run tries again."""
        if self._is_on and self._try(send, "is switched off, the run goes on without it"):
            # Sending may have moved the step on: W&B counts the rows by window as steps, too.
            self.state.step = max(step, self.state.step)
            self.state.sent += measurements
            self.save()

    def _try(self, action: Callable[[], None], consequence: str) -> bool:
        """Do something, and return whether the tracker is on. A failure switches it off, with one warning."""
        try:
            action()
        except Exception as error:
            if self._is_on:
                text = error_text(error)
                logger.warning("%s %s (%s).%s", self.label, consequence, text, self.advice())
            self._is_on = False
        return self._is_on


def error_text(error: BaseException) -> str:
    """Return an error on one line, without the user's key."""
    text = str(error)
    # Warnings go to log.txt in the run directory, which people share.
    key = os.environ.get("WANDB_API_KEY")
    if key:
        text = text.replace(key, "***")
    line = visible(text.partition("\n")[0])
    return f"{type(error).__name__}: {line[:LONGEST_ERROR]}"
