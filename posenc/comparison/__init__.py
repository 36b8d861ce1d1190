"""Runs held against each other: rows and columns, words and ranks, beside a paper's table. No torch."""

from __future__ import annotations

from posenc.comparison.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
