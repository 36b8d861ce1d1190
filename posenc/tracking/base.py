"""The contract of a tracker, and what all trackers do alike: names, time limits, one warning, no doubles."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from posenc.core.atomic_files import write_json_atomic
from posenc.core.console import run_interruptible
from posenc.core.errors import RunError, UserError, visible
from posenc.tracking import metrics as figures

logger = logging.getLogger(__name__)
T = TypeVar("T")

GRACE_SECONDS = 1.0  # beyond a tracker's own time-out, for its service to start or stop


@dataclass(frozen=True)
class TrackedRun:
    """One training run, as a tracker shows it. `config` is plain resolved data without secrets."""

    name: str
    group: str | None  # what the runs of one sweep have in common
    tags: Sequence[str]
    config: Mapping[str, Any]
    directory: Path

    def png(self, kinds: Sequence[str]) -> dict[str, bytes]:
        """Draw plots by kind (keys of `posenc.report.charts.PLOTS`), but those nothing was measured for."""
        drawn = {kind: self._of_stored(f"the plot {kind}", partial(_plot, kind)) for kind in kinds}
        return {kind: png for kind, png in drawn.items() if png}

    def headline(self) -> str:
        """Return what was found, in a sentence; empty without a number."""
        from posenc.report.captions import run_headline

        return self._of_stored("the headline", run_headline) or ""

    def _of_stored(self, what: str, make: Callable[[Any], T]) -> T | None:
        try:
            from posenc.results.load import load_run

            run = load_run(self.directory)
            if run.status.get("status") == "running":  # it is this very job that asks, at its end
                run.status = {**run.status, "status": "finished"}
            return make(run)
        except UserError as error:
            logger.debug("no %s: %s", what, error.problem)  # nobody measured what it shows
        except Exception as error:
            logger.warning("%s cannot be made for the trackers (%s)", what, reason(error))
        return None


def _plot(kind: str, run: Any) -> bytes | None:
    from posenc.report.charts import plot_bytes
    from posenc.results.comparison import CompareRequest, compare_runs, protocols_of

    if not (measured := protocols_of([run])):
        return None
    return plot_bytes("png", kind, [run], compare_runs([run], CompareRequest(measured[0])))


class Tracker(Protocol):
    """A copy of the numbers elsewhere. No method ever raises."""

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Log the numbers of one training step. A name without a slash is shown under `train/`.

        A step that was logged before the run was stopped is not logged again.
        """

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Log the records of `results.json`, after the last step; cells logged before are left out."""

    def finish(self, status: str) -> None:
        """End the tracked run. Every status but `finished` marks it as failed."""


class NoTracker:
    """Do nothing, so that the training loop never asks whether there is a tracker."""

    label = "none"

    def __init__(self, run: TrackedRun | None = None) -> None:
        pass

    @staticmethod
    def check(prefix: str) -> None:
        pass

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        pass

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        pass

    def finish(self, status: str) -> None:
        pass


@dataclass
class Progress:
    """What a tracker has of a run, in `tracking/<tracker>.json`: a resumed run goes on from there."""

    id: str  # the tracked run's own
    group: str | None  # the first one it had: an evaluation later does not move it
    step: int = -1  # the last training step
    row: int = -1  # the last row, for a tracker that counts rows by itself
    sent: list[str] = field(default_factory=list)  # cells


@dataclass(frozen=True)
class Evaluation:
    """What there is to show of an evaluation."""

    windows: list[dict[str, float]]  # a row a window, of the cells that were not logged before
    positions: list[dict[str, float]]  # a row a bin of positions, likewise
    summary: dict[str, float]
    headline: str  # what was found, in a sentence
    table: list[list[Any]]  # rows of posenc.tracking.metrics.COLUMNS
    pictures: dict[str, bytes]  # PNG by kind


class BaseTracker:
    """A tracked run. The first exception is one warning and switches it off.

    Subclasses connect in `__init__`, whose keyword-only parameters are the keys of their YAML, and send:
    `send_step`, `send_evaluation`, `end`. These may raise, the last two may hang.
    """

    label = ""  # its name in messages

    def __init__(self, run: TrackedRun, name: str, timeout: float, plots: Sequence[str]) -> None:
        self.run = run
        self.plots = plots
        self._file = run.directory / "tracking" / f"{name}.json"
        self._timeout = timeout
        self._on = True
        self._given_up = False
        self._finished = False
        # not made from the directory's hash: that is the same for everybody who trains the same thing
        self.progress = Progress(secrets.token_hex(6), run.group)
        self.resumed = False
        with suppress(OSError, ValueError, TypeError):
            kept = Progress(**json.loads(self._file.read_text(encoding="utf-8")))
            if re.fullmatch(r"[a-z0-9]{8,64}", kept.id):  # it becomes a part of paths
                self.progress, self.resumed = kept, True

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        """Send one training step; every name has a slash."""
        raise NotImplementedError

    def send_evaluation(self, shown: Evaluation) -> None:
        """Send curves, summary figures, a table, pictures."""
        raise NotImplementedError

    def end(self, status: str) -> None:
        """Flush and close."""
        raise NotImplementedError

    def leave(self) -> None:
        """Clean up after an end that failed or hangs."""

    def advice(self) -> str:
        """Say what to do about what was not sent; starts with a space."""
        return ""

    def save(self) -> None:
        """Keep the progress; where it cannot be written, tracking goes on without."""
        with suppress(OSError, RunError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(self._file, asdict(self.progress))

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Send one row at `step`, with bare names under `train/`."""
        self._try(lambda: self._log(metrics, step))

    def _log(self, metrics: dict[str, float], step: int | None) -> None:
        if step is None or step > self.progress.step:
            row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
            self.send_step(row, step)
            self.progress.step = self.progress.step if step is None else step
            self.save()

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Send curves against window and position, summary figures, a table, plots."""
        self._try(lambda: self._evaluation(records))

    def _evaluation(self, records: list[dict[str, Any]]) -> None:
        config = self.run.config
        every = figures.apart(records, config)
        fresh = [record for record in every if cell_key(record) not in self.progress.sent]
        if fresh:
            windows, positions = figures.by_window(fresh, config), figures.by_position(fresh, config)
            summary, table = figures.summary(every, config), figures.table_rows(every, config)
            sentence, pictures = self.run.headline(), self.run.png(self.plots)
            shown = Evaluation(windows, positions, summary, sentence, table, pictures)
            self._within(lambda: self.send_evaluation(shown))
            self.progress.sent += [cell_key(record) for record in fresh]
            self.save()

    def finish(self, status: str) -> None:
        """End it within `timeout` seconds; once."""
        if self._finished:
            return
        self._finished = True
        try:
            if not self._given_up:  # it would hang again
                self._within(lambda: self.end(status))
                return
        except Exception as error:
            if self._on:
                logger.warning("%s did not get everything (%s).%s", self.label, reason(error), self.advice())
        self.leave()

    def _within(self, action: Callable[[], None]) -> None:
        """Call what may hang. W&B asks the server before it takes an artifact: 20 s where that has died."""
        run_interruptible(lambda _: action(), limit=self._timeout + GRACE_SECONDS)

    def _try(self, action: Callable[[], None]) -> None:
        if not self._on or self._finished:
            return
        try:
            action()
        except Exception as error:
            self._on, self._given_up = False, isinstance(error, TimeoutError)
            words = "is switched off, the run goes on without it"
            logger.warning("%s %s (%s).%s", self.label, words, reason(error), self.advice())


def cell_key(record: Mapping[str, Any]) -> str:
    """Return what tells one measurement from another, on whatever targets."""
    extend = json.dumps(record.get("extend"), sort_keys=True, default=str)
    names = ("protocol", "window", "stride", "targets_hash", "checkpoint_step", "nats")
    return "|".join([*(str(record.get(name)) for name in names), extend])


def reason(error: BaseException) -> str:
    """Say what happened, on one line, without the key."""
    key = os.environ.get("WANDB_API_KEY")
    text = str(error).replace(key, "***") if key else str(error)
    return f"{type(error).__name__}: {visible(text.partition(chr(10))[0])[:200]}"


@contextmanager
def as_files(pictures: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Write pictures for as long as it lasts, paths by kind: trackers copy files faster than they encode."""
    with tempfile.TemporaryDirectory(prefix="posenc-") as folder:
        for kind, png in pictures.items():
            (Path(folder) / f"{kind}.png").write_bytes(png)
        yield {kind: f"{folder}/{kind}.png" for kind in pictures}


def check_shared(prefix: str, timeout: float, plots: Sequence[str]) -> None:
    """Raise UserError for what is no time, and for a plot that there is none of."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise UserError(f"{prefix}.timeout", timeout, "not a time", allowed="seconds above 0")
    from posenc.report.charts import PLOTS

    for plot in plots:
        if plot not in PLOTS:
            raise UserError(f"{prefix}.plots", plot, "no such plot", allowed=list(PLOTS))


def refuse_without(package: str, key: str, value: str | None, extra: str) -> None:
    """Raise UserError where a package of `posenc[extra]` is missing, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'posenc[{extra}]'   (in a clone: pip install -c constraints.txt -e '.[{extra}]')"
        raise UserError(key, value, f"needs the package {package}, which is not installed", hint=hint)
