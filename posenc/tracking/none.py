"""No tracker: the same methods, which do nothing."""

from __future__ import annotations

from typing import Any

from posenc.tracking.base import TrackedRun


class NoTracker:
    """Stands where a tracker would, so that the training loop never asks whether there is one."""

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Nothing."""

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Nothing."""

    def finish(self, status: str) -> None:
        """Nothing."""


def check() -> None:
    """There is nothing that could be wrong."""


def start(run: TrackedRun) -> NoTracker:
    """Track nothing."""
    return NoTracker()
