"""Several trackers at once: each with its own settings, limits and failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from posenc.core.errors import UserError
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.guard import reason

logger = logging.getLogger(__name__)


class SeveralTrackers:
    """Tells each of them everything."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """As `Tracker.log`."""
        self._each(lambda tracker: tracker.log(dict(metrics), step))

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """As `Tracker.evaluation`."""
        self._each(lambda tracker: tracker.evaluation(records))

    def finish(self, status: str) -> None:
        """As `Tracker.finish`."""
        self._each(lambda tracker: tracker.finish(status))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            try:
                tell(tracker)
            except Exception as error:  # against the rules; it must not cost the others theirs
                logger.warning("%s failed (%s)", type(tracker).__name__, reason(error))


def check(
    *, trackers: list[str], wandb: dict[str, Any], trackio: dict[str, Any], tensorboard: dict[str, Any]
) -> None:
    """Raise UserError for trackers that there are none of, and for settings that one of them refuses."""
    from posenc.tracking import check_one, resolve_one

    groups = {"wandb": wandb, "trackio": trackio, "tensorboard": tensorboard}
    if not trackers:
        raise UserError("tracking.trackers", "[]", "none is named", allowed=groups, hint="or tracking=none")
    for name in trackers:
        if name not in groups:
            raise UserError("tracking.trackers", name, "there is no such tracker", allowed=groups)
    for name, group in groups.items():
        resolve_one({**group, "name": name}, f"tracking.{name}")
        if name in trackers:
            check_one({**group, "name": name}, f"tracking.{name}")


def start(
    run: TrackedRun,
    *,
    trackers: list[str],
    wandb: dict[str, Any],
    trackio: dict[str, Any],
    tensorboard: dict[str, Any],
) -> Tracker:
    """Start each of `trackers` with the settings of its name. Never raises."""
    from posenc.tracking import start_one

    groups = {"wandb": wandb, "trackio": trackio, "tensorboard": tensorboard}
    return SeveralTrackers(
        [
            start_one({**groups[name], "name": name}, run, f"tracking.{name}")
            for name in dict.fromkeys(trackers)
        ]
    )
