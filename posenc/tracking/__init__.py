"""Track runs: copies of a run's numbers on a dashboard. The files of the run are the truth."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments
from posenc.tracking.base import BaseTracker, NoTracker, TrackedRun, Tracker, reason

__all__ = ["TRACKERS", "BaseTracker", "NoTracker", "TrackedRun", "Tracker", "build_tracker", "check_tracking"]

TRACKERS = ("none", "several", "tensorboard", "trackio", "wandb")
Group = dict[str, Any]
logger = logging.getLogger(__name__)


def check_tracking(tracking: Mapping[str, Any], prefix: str = "tracking") -> None:
    """Raise UserError if the config group cannot work: name, keys, types, a missing package."""
    tracker, arguments = _resolve(tracking, prefix)
    tracker.check(prefix, **arguments)


def build_tracker(
    tracking: Mapping[str, Any],
    *,
    run_name: str,
    group: str | None,
    tags: Sequence[str],
    config: Mapping[str, Any],
    run_dir: Path,
) -> Tracker:
    """Start the tracker that the config group `tracking` names.

    Raises UserError as `check_tracking` does. Anything else that goes wrong is one warning and an object that
    does nothing.
    """
    check_tracking(tracking)
    return _start(tracking, TrackedRun(run_name, group, tags, config, Path(run_dir)), "tracking")


def _start(tracking: Mapping[str, Any], run: TrackedRun, prefix: str) -> Tracker:
    tracker, arguments = _resolve(tracking, prefix)
    try:
        started: Tracker = tracker(run, **arguments)
    except Exception as error:
        logger.warning("%s could not start, the run goes on without it (%s)", tracker.label, reason(error))
        return NoTracker(run)
    return started


def _resolve(tracking: Mapping[str, Any], prefix: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of a tracker and its arguments, typed: they are the keys of its YAML."""
    name = tracking.get("name")
    if name not in TRACKERS:
        raise UserError(prefix, name, "there is no such tracker", allowed=TRACKERS)
    tracker: Any = {"none": NoTracker, "several": SeveralTrackers}.get(str(name))
    if tracker is None:
        tracker = importlib.import_module(f"posenc.tracking.{name}").TRACKER
    given = {str(key): value for key, value in tracking.items() if key != "name"}
    return tracker, check_arguments(tracker, given, prefix)


class SeveralTrackers:
    """Tell each of several trackers everything, each with its own settings, limits and failures."""

    label = "several trackers"

    def __init__(
        self, run: TrackedRun, *, trackers: list[str], wandb: Group, trackio: Group, tensorboard: Group
    ) -> None:
        groups = {"wandb": wandb, "trackio": trackio, "tensorboard": tensorboard}
        self._trackers = [
            _start({**groups[name], "name": name}, run, f"tracking.{name}")
            for name in dict.fromkeys(trackers)
        ]

    @staticmethod
    def check(prefix: str, *, trackers: list[str], **groups: Group) -> None:
        """Raise UserError for trackers that there are none of, and for settings that one of them refuses."""
        if not trackers:
            hint = "or tracking=none"
            raise UserError(f"{prefix}.trackers", "[]", "none is named", allowed=groups, hint=hint)
        for name in trackers:
            if name not in groups:
                raise UserError(f"{prefix}.trackers", name, "there is no such tracker", allowed=groups)
            check_tracking({**groups[name], "name": name}, f"{prefix}.{name}")
        for name, group in groups.items():
            _resolve({**group, "name": name}, f"{prefix}.{name}")  # a misspelt key, asked for or not

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        for tracker in self._trackers:
            tracker.evaluation(records)

    def finish(self, status: str) -> None:
        for tracker in self._trackers:
            tracker.finish(status)
