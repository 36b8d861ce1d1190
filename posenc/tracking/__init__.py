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

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments
from posenc.tracking.base import TrackedRun, Tracker

__all__ = ["TRACKERS", "TrackedRun", "Tracker", "build_tracker", "check_tracking"]

TRACKERS = ("none", "several", "tensorboard", "trackio", "wandb")


def check_tracking(tracking: Mapping[str, Any]) -> None:
    """Raise UserError if the config group `tracking` cannot work: name, keys, types, a missing package."""
    check_one(tracking, "tracking")


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
    check_one(tracking, "tracking")
    run = TrackedRun(name=run_name, group=group, tags=tags, config=config, directory=Path(run_dir))
    return start_one(tracking, run, "tracking")


def start_one(tracking: Mapping[str, Any], run: TrackedRun, prefix: str) -> Tracker:
    """The tracker of a checked group whose keys are `prefix.key`."""
    module, arguments = resolve_one(tracking, prefix)
    tracker: Tracker = module.start(run, **arguments)
    return tracker


def check_one(tracking: Mapping[str, Any], prefix: str) -> None:
    """Check the group whose keys are `prefix.key`. Raises UserError."""
    module, arguments = resolve_one(tracking, prefix)
    try:
        module.check(**arguments)
    except UserError as error:
        raise _renamed(error, prefix) from None


def resolve_one(tracking: Mapping[str, Any], prefix: str) -> tuple[ModuleType, dict[str, Any]]:
    """The module of a tracker and its arguments, typed. Raises UserError."""
    name = tracking.get("name")
    if name not in TRACKERS:
        raise UserError(prefix, name, "there is no such tracker", allowed=TRACKERS)
    module = importlib.import_module(f"posenc.tracking.{name}")
    given = {str(key): value for key, value in tracking.items() if key != "name"}
    return module, check_arguments(module.start, given, prefix)


def _renamed(error: UserError, prefix: str) -> UserError:
    """A tracker speaks of its keys as `tracking.key`; among several they are `tracking.<its name>.key`."""
    if prefix == "tracking" or not error.key.startswith("tracking."):
        return error
    hint = error.hint.replace("tracking.", f"{prefix}.") if error.hint else None
    key = error.key.replace("tracking", prefix, 1)
    return UserError(key, error.value, error.problem, allowed=error.allowed, hint=hint)
