"""Track runs: copies of a run's numbers on a dashboard. The files of the run are the truth."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments, parameters
from posenc.tracking.base import BaseTracker, TrackedRun, Tracker, reason

__all__ = ["TRACKERS", "BaseTracker", "TrackedRun", "Tracker", "build_tracker", "check_tracking"]

TRACKERS = {  # module and class
    "none": ("base", "Tracker"),
    "tensorboard": ("local", "TensorboardTracker"),
    "trackio": ("local", "TrackioTracker"),
    "wandb": ("wandb", "WandbTracker"),
}
logger = logging.getLogger(__name__)


def check_tracking(tracking: Mapping[str, Any]) -> None:
    """Raise UserError if the config group cannot work: name, keys, types, values, a missing package."""
    tracker, arguments = _resolve(tracking)
    if tracker is not None:
        tracker.check(arguments)


def build_tracker(
    tracking: Mapping[str, Any],
    *,
    run_name: str,
    group: str | None,
    tags: Sequence[str],
    config: Mapping[str, Any],
    run_dir: Path,
) -> Tracker:
    """Start the tracker of the config group; where that fails, warn once and return one that does nothing."""
    check_tracking(tracking)
    tracker, arguments = _resolve(tracking)
    if tracker is None:
        return Tracker()
    try:
        started: Tracker = tracker(TrackedRun(run_name, group, tags, config, Path(run_dir)), **arguments)
    except Exception as error:
        logger.warning("%s could not start, the run goes on without it (%s)", tracker.label, reason(error))
        return Tracker()
    return started


def refuse_without(package: str, key: str, value: str | None, extra: str) -> None:
    """Raise UserError where a package of `posenc[extra]` is missing, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'posenc[{extra}]'   (in a clone: pip install -c constraints.txt -e '.[{extra}]')"
        raise UserError(key, value, f"needs the package {package}, which is not installed", hint=hint)


def _resolve(tracking: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the class of a tracker (None: no tracker) and its arguments, typed: the keys of its YAML."""
    name = tracking.get("name")
    if name not in TRACKERS:
        raise UserError("tracking", name, "there is no such tracker", allowed=TRACKERS)
    if name == "none":
        return None, check_arguments(Tracker, parameters(tracking), "tracking")
    refuse_without(str(name), "tracking", name, str(name))
    module, kind = TRACKERS[str(name)]
    tracker: Any = getattr(importlib.import_module(f"posenc.tracking.{module}"), kind)
    return tracker, check_arguments(tracker, parameters(tracking), "tracking")
