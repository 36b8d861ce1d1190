"""Track runs: copies of a run's numbers on a dashboard. The files of the run are the truth."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any, NamedTuple

from posenc.core.errors import UserError
from posenc.settings.signature import check_arguments
from posenc.settings.tree import NONE, TrackingSettings
from posenc.tracking.tracker import COMPARISON as COMPARISON
from posenc.tracking.tracker import BaseTracker as BaseTracker
from posenc.tracking.tracker import TrackedRun as TrackedRun
from posenc.tracking.tracker import Tracker as Tracker
from posenc.tracking.tracker import error_text

logger = logging.getLogger(__name__)


class _ClassPath(NamedTuple):
    """Name the class of a tracker. Its module is imported when it is chosen, and with it a package."""

    module: str
    class_name: str


TRACKERS: dict[str, _ClassPath | None] = {
    NONE: None,
    "tensorboard": _ClassPath("posenc.tracking.tensorboard", "TensorboardTracker"),
    "trackio": _ClassPath("posenc.tracking.trackio", "TrackioTracker"),
    "wandb": _ClassPath("posenc.tracking.wandb", "WandbTracker"),
}


def check_tracking(settings: TrackingSettings) -> None:
    """Raise UserError if the tracker cannot work: for name, keys, types or values, or a missing package."""
    _choose(settings)


def build_tracker(settings: TrackingSettings, run: TrackedRun) -> Tracker:
    """Start the chosen tracker. If that fails, warn once and return a tracker that does nothing.

    Raises UserError, as `check_tracking`.
    """
    tracker_class, arguments = _choose(settings)
    if tracker_class is None:
        return Tracker()
    try:
        return tracker_class(run, **arguments)
    # Whatever a tracker's library raises: the files of the run are the truth, and a dashboard is no reason to
    # lose a run.
    except Exception as error:
        text = error_text(error)
        logger.warning("%s could not start, the run goes on without it (%s)", tracker_class.label, text)
        return Tracker()


def has_tables(settings: TrackingSettings) -> bool:
    """Tell whether the chosen tracker shows tables. Raises UserError, as `check_tracking`."""
    tracker_class, _ = _choose(settings)
    return tracker_class is not None and tracker_class.has_tables


def _choose(settings: TrackingSettings) -> tuple[type[BaseTracker] | None, dict[str, Any]]:
    """Return the class that the settings name, or None for no tracker, and its checked arguments."""
    name = settings.name
    if name not in TRACKERS:
        raise UserError("tracking", name, "there is no such tracker", allowed=TRACKERS)
    path = TRACKERS[name]
    if path is None:
        return None, check_arguments(Tracker, settings.parameters, "tracking")
    # Before the import, whose error would name a module and not the command that installs it.
    refuse_without(name, "tracking", name, name)
    module = importlib.import_module(path.module)
    tracker_class: type[BaseTracker] = getattr(module, path.class_name)
    arguments = check_arguments(tracker_class, settings.parameters, "tracking")
    tracker_class.check(arguments)
    return tracker_class, arguments


def refuse_without(package: str, key: str, value: str | None, extra: str) -> None:
    """Raise UserError if a package of `posenc[extra]` is missing, with the command that installs it."""
    if importlib.util.find_spec(package) is None:
        hint = f"pip install 'posenc[{extra}]'   (in a clone: pip install -c constraints.txt -e '.[{extra}]')"
        raise UserError(key, value, f"needs the package {package}, which is not installed", hint=hint)
