"""The interface to a tracker, and what a tracker is told about the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from posenc.tracking.pictures import Pictures


@dataclass(frozen=True)
class TrackedRun:
    """One training run, as a tracker shows it. `config` is plain resolved data without secrets."""

    name: str
    group: str | None  # what the runs of one sweep have in common
    tags: Sequence[str]
    config: Mapping[str, Any]
    directory: Path
    pictures: Pictures = field(init=False)  # shared, so that several trackers draw each plot once

    def __post_init__(self) -> None:
        object.__setattr__(self, "pictures", Pictures(self.directory))


class Tracker(Protocol):
    """A copy of the numbers elsewhere; the files of the run are the truth. No method ever raises."""

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Numbers of one training step. A name without a slash is shown under `train/`.

        A step that was given before the run was stopped is not given again.
        """

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """The records of `results.json` together, after the last step; cells given before are left out."""

    def finish(self, status: str) -> None:
        """End the tracked run. Every status but `finished` marks it as failed."""
