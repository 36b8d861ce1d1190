"""Results: records on disk, runs that are read back, their comparison and its statistics. Without torch."""

from __future__ import annotations

from posenc.results.discovery import load_runs
from posenc.results.runs import Run

__all__ = ["Run", "load_runs"]
