"""Trackers: copies of a run's numbers on a dashboard. `tracking.name` is a module of this package.

Such a module has `start(run, *, ...) -> Tracker`, whose keyword-only parameters are the keys of its YAML, and
`check(...)` with the same parameters, which raises UserError before anything runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.errors import UserError
from posenc.signature import check_arguments
from posenc.tracking.base import TrackedRun, Tracker

__all__ = ["TRACKERS", "TrackedRun", "Tracker", "build_tracker", "check_tracking"]

TRACKERS = ("none", "wandb")


def check_tracking(tracking: Mapping[str, Any]) -> None:
    """Raise UserError if the config group `tracking` cannot work: its name, keys, types, or a missing key."""
    module, arguments = _resolve(tracking)
    module.check(**arguments)


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
    module, arguments = _resolve(tracking)
    module.check(**arguments)
    run = TrackedRun(name=run_name, group=group, tags=tags, config=config, directory=Path(run_dir))
    tracker: Tracker = module.start(run, **arguments)
    return tracker


def _resolve(tracking: Mapping[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
    name = tracking.get("name")
    if name not in TRACKERS:
        raise UserError("tracking", name, "there is no such tracker", allowed=TRACKERS)
    module = importlib.import_module(f"posenc.tracking.{name}")
    given = {str(key): value for key, value in tracking.items() if key != "name"}
    return module, check_arguments(module.start, given, "tracking")
