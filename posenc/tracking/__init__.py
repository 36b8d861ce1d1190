"""Track runs: copies of a run's numbers on a dashboard. The files of the run are the truth.

The contract of a tracker, what all do alike (the curves, one warning, nothing twice), and the choice of one.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic
from posenc.core.errors import RunError, UserError, visible
from posenc.core.signature import check_arguments, parameters
from posenc.results.settings import knob_words

logger = logging.getLogger(__name__)
TRACKERS = {  # class, and its module
    "none": None,
    "tensorboard": ("local", "TensorboardTracker"),
    "trackio": ("local", "TrackioTracker"),
    "wandb": ("wandb", "WandbTracker"),
}
STEP, WINDOW, POSITION = "step", "eval/window", "eval/position"  # axes: training steps, and tokens
Record = Mapping[str, Any]
Row = dict[str, float]


class Tracker:
    """A copy of the numbers elsewhere; this one does nothing. No method ever raises."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log the numbers of one training step. A name without a slash is shown under `train/`.

        A step that was logged before the run was stopped is not logged again.
        """

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Log the records of `results.json`, after the last step; cells logged before are left out."""

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
class Progress:
    """What a tracker has of a run, in `tracking/<tracker>.json`: a resumed run goes on from there."""

    id: str  # the tracked run's own
    group: str | None  # the first one it had: an evaluation later does not move it
    step: int = -1  # the last one sent
    sent: list[str] = field(default_factory=list)  # cells


class BaseTracker(Tracker):
    """A tracked run, switched off with a warning by its first exception; parameters are its YAML's keys."""

    label = ""  # its name in messages

    def __init__(self, run: TrackedRun, name: str) -> None:
        self.run = run
        self._file = run.directory / "tracking" / f"{name}.json"
        self._on, self._finished = True, False
        # not made from the directory's hash: that is the same for everybody who trains the same thing
        self.progress, self.resumed = Progress(secrets.token_hex(6), run.group), False
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(self._file.read_text(encoding="utf-8"))
            kept = Progress(kept["id"], kept["group"], int(kept["step"]), list(kept["sent"]))
            if re.fullmatch(r"[a-z0-9]{8,64}", kept.id):  # it becomes a part of paths
                self.progress, self.resumed = kept, True

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for values that the tracker does not take."""

    def send(self, row: Row, axis: str, at: int) -> None:
        """Send figures against an axis: STEP, WINDOW or POSITION."""
        raise NotImplementedError

    def send_summary(self, row: Row) -> None:
        """Send the figures that tell this run from others."""
        self.send(row, STEP, max(self.progress.step, 0))

    def end(self, status: str) -> None:
        """Flush and close."""
        raise NotImplementedError

    def advice(self) -> str:
        """Say what to do about what was not sent; starts with a space."""
        return ""

    def save(self) -> None:
        """Keep the progress; where it cannot be written, tracking goes on without."""
        with suppress(OSError, RunError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(self._file, asdict(self.progress))

    def log(self, metrics: dict[str, float], step: int) -> None:
        if step > self.progress.step:
            row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
            self._send(lambda: self.send(row, STEP, step), step, [])

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        curves = curves_of(records, self.run.config)
        fresh = [(name, record) for name, record in curves if cell_key(record) not in self.progress.sent]

        def send() -> None:
            for axis, rows in by_axis(fresh).items():
                for at, row in rows.items():
                    self.send(row, axis, at)
            self.send_summary(summary(curves))

        if fresh:
            self._send(send, self.progress.step, [cell_key(record) for _, record in fresh])

    def _send(self, action: Callable[[], None], step: int, cells: list[str]) -> None:
        if self._on and self._try(action, "is switched off, the run goes on without it"):
            self.progress.step = max(step, self.progress.step)
            self.progress.sent += cells
            self.save()

    def _try(self, action: Callable[[], None], otherwise: str) -> bool:
        try:
            action()
        except Exception as error:
            if self._on:
                logger.warning("%s %s (%s).%s", self.label, otherwise, reason(error), self.advice())
            self._on = False
        return self._on

    def finish(self, status: str) -> None:
        if not self._finished:
            self._finished = True
            self._try(lambda: self.end(status), "did not get everything")
        self._on = False


def cell_key(record: Record) -> str:
    """Return the identity of a measurement with its value: what is measured again is sent again."""
    extend = json.dumps(record.get("extend"), sort_keys=True, default=str)
    names = ("protocol", "window", "stride", "targets_hash", "checkpoint_step", "nats")
    return "|".join([*(str(record.get(name)) for name in names), extend])


def reason(error: BaseException) -> str:
    """Say what happened, on one line, without the key."""
    key = os.environ.get("WANDB_API_KEY")
    text = str(error).replace(key, "***") if key else str(error)
    return f"{type(error).__name__}: {visible(text.partition(chr(10))[0])[:200]}"


def curves_of(records: Sequence[Record], config: Mapping[str, Any]) -> list[tuple[str, Record]]:
    """Return the records with the name of the curve that each is a point of.

    Points of a later evaluation with another stride or on other targets are left out.
    """
    curves: dict[str, list[Record]] = {}
    for record in records:
        curves.setdefault(curve_name(record, config), []).append(record)
    for points in curves.values():
        for key in ("stride", "targets_hash"):
            (most, count), *_ = Counter(str(point.get(key)) for point in points).most_common(1)
            if count > 1:  # else each window has targets of its own
                points[:] = [point for point in points if str(point.get(key)) == most]
    return [(name, point) for name, points in curves.items() for point in points]


def curve_name(record: Record, config: Mapping[str, Any]) -> str:
    """Return `fixed-target+yarn beta_fast=4 on stdlib`: the text is named where it is not the run's."""
    name, words = str(record["protocol"]), []
    if (extend := record.get("extend")) is not None:
        name += f"+{extend['name']}"
        words += knob_words(extend)
    corpus, split = (config.get("data") or {}).get("name"), (config.get("eval") or {}).get("split")
    if corpus and record.get("corpus", corpus) != corpus:
        words.append(f"on {record['corpus']}")
    if split and record.get("split", split) != split:
        words.append(str(record["split"]))
    return " ".join([name, *words])


def by_axis(curves: Sequence[tuple[str, Record]]) -> dict[str, dict[int, Row]]:
    """Return one row a window (tokens) and one a bin of positions, named by its last: finite figures alone.

    Positions are those of each curve's longest window.
    """
    found: dict[str, dict[int, Row]] = {WINDOW: defaultdict(dict), POSITION: defaultdict(dict)}
    for name, record in sorted(curves, key=lambda one: int(one[1]["window"])):
        figures = {f"eval/{name}/{measure}": record.get(measure) for measure in ("nats", "bpb", "ppl")}
        found[WINDOW][int(record["window"])] |= _finite(figures)
        curve = record.get("curve") or {"edges": []}
        for i, edge in enumerate(curve["edges"][1:]):
            figures = {f"eval/{name}/{key}-by-position": curve[key][i] for key in ("nats", "rise")}
            found[POSITION][edge - 1] |= _finite(figures)
    return {axis: {at: rows[at] for at in sorted(rows) if rows[at]} for axis, rows in found.items()}


def summary(curves: Sequence[tuple[str, Record]]) -> Row:
    """Return `eval/<curve>/nats@8x` for every multiple of the training length."""
    return _finite({f"eval/{name}/nats@{one['multiple']:g}x": one.get("nats") for name, one in curves})


def _finite(figures: Mapping[str, Any]) -> Row:
    return {k: float(v) for k, v in figures.items() if isinstance(v, (int, float)) and math.isfinite(v)}


# --- The choice of a tracker


def check_tracking(tracking: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class that the config group names (None: no tracker) and its arguments, typed.

    Raises UserError if it cannot work: name, keys, types, values, a missing package.
    """
    name = tracking.get("name")
    if name not in TRACKERS:
        raise UserError("tracking", name, "there is no such tracker", allowed=TRACKERS)
    if (place := TRACKERS[str(name)]) is None:
        return None, check_arguments(Tracker, parameters(tracking), "tracking")
    refuse_without(str(name), "tracking", name, str(name))
    module, kind = place
    tracker: Any = getattr(importlib.import_module(f"posenc.tracking.{module}"), kind)
    arguments = check_arguments(tracker, parameters(tracking), "tracking")
    tracker.check(arguments)
    return tracker, arguments


def build_tracker(tracking: Mapping[str, Any], run: TrackedRun) -> Tracker:
    """Start the tracker of the config group; where that fails, warn once and return one that does nothing."""
    tracker, arguments = check_tracking(tracking)
    if tracker is None:
        return Tracker()
    try:
        started: Tracker = tracker(run, **arguments)
    except Exception as error:
        logger.warning("%s could not start, the run goes on without it (%s)", tracker.label, reason(error))
        return Tracker()
    return started


def refuse_without(package: str, key: str, value: str | None, extra: str) -> None:
    """Raise UserError where a package of `posenc[extra]` is missing, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'posenc[{extra}]'   (in a clone: pip install -c constraints.txt -e '.[{extra}]')"
        raise UserError(key, value, f"needs the package {package}, which is not installed", hint=hint)
