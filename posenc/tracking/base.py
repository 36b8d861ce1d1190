"""The interface to a tracker, and what a tracker is told about the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class TrackedRun:
    """One training run, as a tracker shows it. `config` is plain resolved data without secrets."""

    name: str
    group: str | None  # what the runs of one sweep have in common
    tags: Sequence[str]
    config: Mapping[str, Any]
    directory: Path


class Tracker(Protocol):
    """A copy of the numbers elsewhere; the files of the run are the truth. No method ever raises."""

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Numbers of one training step. A name without a slash is shown under `train/`."""

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """The records of `results.json`, all at once, after the last step."""

    def finish(self, status: str) -> None:
        """End the tracked run. Every status but `finished` marks it as failed."""
