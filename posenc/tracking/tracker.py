"""What all trackers do alike: the curves, one warning, nothing twice, and never an exception."""

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
from posenc.tracking.curves import (
    STEP,
    Row,
    curve_points,
    measurement_key,
    rows_by_axis,
    summary_of,
)

logger = logging.getLogger(__name__)
TRACKED_ID = re.compile(r"[a-z0-9]{8,64}")
LONGEST_REASON = 200  # characters


class Tracker:
    """A copy of the numbers elsewhere; this one does nothing. No method ever raises."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log the numbers of one training step. A name without a slash is shown under `train/`.

        A step that was logged before the run was stopped is not logged again.
        """

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Log the records of `results.json`, after the last step. What was logged before is left out."""

    def finish(self, status: str) -> None:
        """End the tracked run. Every status but `finished` marks it as failed."""


@dataclass(frozen=True)
class TrackedRun:
    """One training run, as a tracker shows it. `config` is plain resolved data without secrets."""

    name: str
    group: str | None  # what the runs of one sweep have in common
    tags: Sequence[str]
    config: Mapping[str, Any]
    directory: Path


@dataclass
class TrackerState:
    """What a tracker has of a run, in `tracking/<tracker>.json`: a resumed run goes on from there."""

    id: str  # the tracked run's own
    group: str | None  # the first one it had: an evaluation later does not move it
    step: int = -1  # the last one sent
    sent: list[str] = field(default_factory=list)  # measurements, by key

    @classmethod
    def fresh(cls, group: str | None) -> TrackerState:
        """Return the state of a run that no tracker has seen.

        Its id is random. One made from the run's hash would be the same for everybody who trains the same.
        """
        return cls(secrets.token_hex(6), group)

    @classmethod
    def read(cls, file: Path) -> TrackerState | None:
        """Return the state in a file; None where there is none, or one that posenc did not write."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            state = cls(values["id"], values["group"], int(values["step"]), list(values["sent"]))
            is_id = TRACKED_ID.fullmatch(state.id)  # it becomes a part of paths
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return state if is_id else None


class BaseTracker(Tracker):
    """A tracked run, switched off with a warning by its first exception.

    A tracker's keyword-only parameters are the keys of its YAML. It implements `send` and `end`.
    """

    label = ""  # its name in messages

    def __init__(self, run: TrackedRun, name: str) -> None:
        self.run = run
        self._file = run.directory / "tracking" / f"{name}.json"
        stored = TrackerState.read(self._file)
        self.resumed = stored is not None
        self.state = stored or TrackerState.fresh(run.group)
        self._is_on = True
        self._is_finished = False

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for values that the tracker does not take."""

    def send(self, row: Row, axis: str, at: int) -> None:
        """Send figures against an axis: STEP, WINDOW or POSITION."""
        raise NotImplementedError

    def send_summary(self, row: Row) -> None:
        """Send the figures that tell this run from others."""
        self.send(row, STEP, max(self.state.step, 0))

    def end(self, status: str) -> None:
        """Flush and close."""
        raise NotImplementedError

    def advice(self) -> str:
        """Say what to do about what was not sent; starts with a space."""
        return ""

    def save(self) -> None:
        """Keep the state; where it cannot be written, tracking goes on without."""
        with suppress(OSError, RunError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(self._file, asdict(self.state))

    def log(self, metrics: dict[str, float], step: int) -> None:
        if step <= self.state.step:
            return
        row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
        self._send(lambda: self.send(row, STEP, step), step, [])

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        points = curve_points(records, self.run.config)
        new_points = [point for point in points if measurement_key(point.record) not in self.state.sent]
        if not new_points:
            return

        def send() -> None:
            for axis, rows in rows_by_axis(new_points).items():
                for at, row in rows.items():
                    self.send(row, axis, at)
            self.send_summary(summary_of(points))

        self._send(send, self.state.step, [measurement_key(point.record) for point in new_points])

    def finish(self, status: str) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._succeeds(lambda: self.end(status), "did not get everything")
        self._is_on = False

    def _send(self, action: Callable[[], None], step: int, measurements: list[str]) -> None:
        """Send something, and keep what was sent. A failure is not remembered: a resumed run tries again."""
        if self._is_on and self._succeeds(action, "is switched off, the run goes on without it"):
            self.state.step = max(step, self.state.step)
            self.state.sent += measurements
            self.save()

    def _succeeds(self, action: Callable[[], None], otherwise: str) -> bool:
        """Do something; the first time that it fails, warn and switch the tracker off."""
        try:
            action()
        except Exception as error:
            if self._is_on:
                logger.warning("%s %s (%s).%s", self.label, otherwise, reason(error), self.advice())
            self._is_on = False
        return self._is_on


def reason(error: BaseException) -> str:
    """Say what happened, on one line, without the key."""
    text = str(error)
    key = os.environ.get("WANDB_API_KEY")
    if key:
        text = text.replace(key, "***")
    line = visible(text.partition("\n")[0])
    return f"{type(error).__name__}: {line[:LONGEST_REASON]}"
