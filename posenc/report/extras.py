"""The second, small table: what a row makes of its context, its probes, how its curve ends."""

from __future__ import annotations

from posenc.core.errors import visible
from posenc.report.entries import Entry, entry
from posenc.report.words import length, spread_is_of
from posenc.results.cells import Cell, CurveSummary, EffectiveContext, Probe, UsesContext
from posenc.results.comparison import Comparison
from posenc.results.schema import printed, printed_change

NOTHING = ["-"]


def extras(comparison: Comparison, sign: str) -> tuple[list[str], list[list[Entry]]]:
    """Heads, and entries[row][column]; columns that no row has a value in are left out."""
    rows, of = comparison.rows, spread_is_of(comparison)
    heads: list[str] = []
    columns: list[list[list[str]]] = []
    if any(row.effective_context for row in rows):
        heads.append("effective\ncontext")
        columns.append([_effective(row.effective_context) for row in rows])
    if any(row.uses_context for row in rows):
        heads.append("T against\nT/2")
        columns.append([_uses(row.uses_context, sign) for row in rows])
    if any(row.curve for row in rows):
        heads += ["slope\npast T", "breaks\nat"]
        columns += [[_slope(row.curve, of, sign) for row in rows], [_breaks(row.curve) for row in rows]]
    for i, probe in enumerate(comparison.probes):
        heads.append(f"{probe.protocol}\n{length(probe.multiple)}")
        columns.append([_probe(row.probes[i], of, sign) for row in rows])
    for i, extension in enumerate(comparison.extensions):
        heads.append(f"{visible(extension.name)}\n{length(extension.multiple)}")
        columns.append([_extended(row.extensions[i], comparison.header["metric"], of, sign) for row in rows])
    entries = [[Entry(column[i], None) for column in columns] for i in range(len(rows))]
    return heads, entries


def _effective(context: EffectiveContext | None) -> list[str]:
    if context is None:
        return NOTHING
    return [length(context.multiple) + ("+" if context.longest else "")]


def _uses(context: UsesContext | None, sign: str) -> list[str]:
    if context is None:
        return NOTHING
    metric = "nats"
    half = "" if context.ci95 is None else sign + printed((context.ci95[1] - context.ci95[0]) / 2, metric)
    return [printed_change(context.change, metric) + half]


def _probe(probe: Probe, of: str | None, sign: str) -> list[str]:
    return entry(probe.cell, "nats", of, sign).lines


def _extended(cell: Cell | None, metric: str, of: str | None, sign: str) -> list[str]:
    return NOTHING if cell is None else entry(cell, metric, of, sign).lines


def _slope(curve: CurveSummary | None, of: str | None, sign: str) -> list[str]:
    if curve is None or curve.slope is None:
        return NOTHING
    half = curve.slope_spread if of == "seeds" else None
    if of == "documents" and curve.slope_ci95 is not None:
        half = (curve.slope_ci95[1] - curve.slope_ci95[0]) / 2
    return [f"{curve.slope:+.1e}" + ("" if half is None else f"{sign}{half:.0e}")]


def _breaks(curve: CurveSummary | None) -> list[str]:
    """The positions, and how many of the seeds break where not all of them do."""
    if curve is None:
        return NOTHING
    broken = sorted(position for position in curve.breaks_at if position is not None)
    if not broken:
        return ["no break" if all(curve.holds) else "unclear"]
    ends = [broken[0]] if broken[0] == broken[-1] else [broken[0], broken[-1]]
    shown = " to ".join(f"{length(round(end / curve.train_length, 2))}" for end in ends)
    part = "" if len(broken) == len(curve.breaks_at) else f"{len(broken)} of {len(curve.breaks_at)} seeds"
    return [shown, *([part] if part else [])]
