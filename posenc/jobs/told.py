"""What a command tells its jobs: variables of their processes' environment, and their settings."""

from __future__ import annotations

from typing import Any

WAIT = "POSENC_WAIT"  # 1: wait for a run that another process holds, instead of refusing
SWEEP = "POSENC_SWEEP"  # the sweep's name
RETRY = "POSENC_RETRY"  # set: a run that diverged is trained again (--retry)
IF_HELD = "POSENC_IF_HELD"  # the exit code of a job that finds another process at its work; 1 without


def without_sweep(settings: dict[str, Any]) -> dict[str, Any]:
    """What a job is told: how its sweep goes on is no part of it."""
    return {key: value for key, value in settings.items() if key != "sweep"}
