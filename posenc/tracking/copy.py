"""What all trackers do alike: names, time limits, one warning at the first failure, nothing given twice."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun
from posenc.tracking.guard import GivenUpError, reason, within
from posenc.tracking.memory import Memory, cell_key

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # beyond a tracker's own time-out, for its service to start or stop


@dataclass(frozen=True)
class Evaluation:
    """What there is to show of an evaluation."""

    windows: list[dict[str, float]]  # a row a window, of the cells that were not given before
    positions: list[dict[str, float]]  # a row a bin of positions, likewise
    summary: dict[str, float]
    table: list[list[Any]]  # rows of posenc.tracking.metrics.COLUMNS
    pictures: dict[str, bytes]  # PNG by kind


class Copy:
    """A tracked run. The first exception is one warning and switches it off.

    Subclasses send: `send_step`, `send_evaluation`, `end`. These may raise, and hang for a while.
    """

    label = ""  # its name in messages

    def __init__(self, run: TrackedRun, memory: Memory, timeout: float, plots: Sequence[str]) -> None:
        self.run = run
        self.memory = memory
        self.plots = plots
        self._timeout = timeout
        self._patience = timeout  # for the end
        self._on = True
        self._finished = False

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        """One training step; every name has a slash."""
        raise NotImplementedError

    def send_evaluation(self, shown: Evaluation) -> None:
        """Curves, summary figures, a table, pictures."""
        raise NotImplementedError

    def end(self, status: str) -> None:
        """Flush and close."""
        raise NotImplementedError

    def leave(self) -> None:
        """After an end that failed or hangs."""

    def advice(self) -> str:
        """What to do about what was not sent; starts with a space."""
        return ""

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """One row at `step`, with bare names under `train/`."""
        if step is not None and step <= self.memory.step:
            return
        row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
        if self._try(lambda: self.send_step(row, step)) and step is not None:
            self.memory.reached(step)

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Curves against window and position, summary figures, a table, plots."""
        config = self.run.config
        fresh: list[dict[str, Any]] = []

        def send() -> None:
            shown = figures.apart(records, config)
            fresh.extend(record for record in shown if cell_key(record) not in self.memory.sent)
            if fresh:
                self.send_evaluation(
                    Evaluation(
                        figures.by_window(fresh, config),
                        figures.by_position(fresh, config),
                        figures.summary(shown, config),
                        figures.table_rows(shown, config),
                        self.run.pictures.png(self.plots),
                    )
                )

        if self._try(send) and fresh:
            self.memory.add(fresh)

    def finish(self, status: str) -> None:
        """End it within `timeout` seconds; once."""
        if self._finished:
            return
        self._finished = True
        try:
            within(self._patience + GRACE_SECONDS, lambda: self.end(status))
        except Exception as error:
            if self._on:
                logger.warning("%s did not get everything (%s).%s", self.label, reason(error), self.advice())
            self.leave()

    def _try(self, action: Callable[[], None]) -> bool:
        """Whether it was done."""
        if not self._on or self._finished:
            return False
        try:
            within(self._timeout, action)
        except Exception as error:
            self._on = False
            if isinstance(error, GivenUpError):
                self._patience = 0.0  # used up
            logger.warning(
                "%s is switched off, the run goes on without it (%s).%s",
                self.label,
                reason(error),
                self.advice(),
            )
            return False
        return True


def check_timeout(timeout: float) -> None:
    """Raise UserError for what is no time."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise UserError("tracking.timeout", timeout, "not a time", allowed="seconds above 0")


def refuse_without(package: str, key: str, value: str | None, extra: str) -> None:
    """Raise UserError where a package of `posenc[extra]` is missing, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'posenc[{extra}]'   (in a clone: pip install -c constraints.txt -e '.[{extra}]')"
        raise UserError(key, value, f"needs the package {package}, which is not installed", hint=hint)
