"""Results on disk: the record schema, reading and writing, statistics, papers' tables. No torch."""

from __future__ import annotations

from posenc.results.load import Run, load_runs

__all__ = ["Run", "load_runs"]
