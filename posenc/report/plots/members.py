"""The runs behind a comparison, and other comparisons of the same runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from posenc.core.errors import UserError
from posenc.results.comparison import Comparison, View, compare
from posenc.results.load import Run
from posenc.results.row_groups import full_label
from posenc.results.schema import HEADLINE


def runs_of(comparison: Comparison, runs: Sequence[Run]) -> list[Run]:
    """Those of `runs` that stand in its rows."""
    paths = {path for row in comparison.rows for path in row.runs}
    return [run for run in runs if str(run.path) in paths]


def measured(
    kind: str, protocol: str, runs: Sequence[Run], comparisons: Sequence[Comparison]
) -> list[Comparison]:
    """The same runs compared by another protocol, in nats; those comparisons that have it.

    Raises UserError where none has.
    """
    found = []
    for one in comparisons:
        if one.header["protocol"] == protocol and one.header["metric"] == "nats":
            found.append(one)
            continue
        members = runs_of(one, runs)
        if any(record["protocol"] == protocol for run in members for record in run.records):
            other = _shown_alike(one, members, protocol)
            other.header["facet"] = one.header["facet"]
            found.append(other)
    if not found:
        hint = f"measure it: posenc eval run=DIR 'eval.protocols=[{HEADLINE},{protocol}]'"
        raise UserError("--plot-kind", kind, f"no run has measured {protocol}", hint=hint)
    return found


def _shown_alike(one: Comparison, members: Sequence[Run], protocol: str) -> Comparison:
    """The runs by another protocol, of them the rows that `one` shows, in its order."""
    every = compare(members, protocol, "nats", allow_mixed=True)
    labels = [
        full_label(row.label, row.mixed)
        for shown in one.rows
        for row in every.rows
        if row.extend == shown.extend and set(row.runs) & set(shown.runs)
    ]
    return compare(members, protocol, "nats", allow_mixed=True, view=View(rows=tuple(dict.fromkeys(labels))))


def per_bit(comparison: Comparison, runs: Sequence[Run]) -> float | None:
    """What one bit per byte is in the comparison's metric; None for perplexities and where it is unknown."""
    metric, protocol = comparison.header["metric"], comparison.header["protocol"]
    if metric == "bpb":
        return 1.0
    ratios = [
        record["nats"] / record["bpb"]
        for run in runs_of(comparison, runs)
        for record in run.records
        if record["protocol"] == protocol and record["nats"] and record["bpb"]
    ]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio) and ratio > 0]
    return statistics.median(ratios) if ratios and metric == "nats" else None
