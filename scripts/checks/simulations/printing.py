"""Print Markdown tables of what was simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holds(interval: Sequence[float] | None, truth: float) -> bool:
    """Tell whether an interval covers the truth."""
    return interval is not None and interval[0] <= truth <= interval[1]


def percent(hits: Sequence[bool]) -> str:
    return f"{np.mean(hits):.1%}"


def print_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |", flush=True)
