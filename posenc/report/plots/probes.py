"""Probes against context: induction and far-copy, which the loss on text cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from posenc.core.errors import UserError
from posenc.report.plots.context import over_context
from posenc.report.plots.members import measured, runs_of
from posenc.report.plots.series import Names, panel_titles
from posenc.results.cells import PROBES
from posenc.results.comparison import Comparison
from posenc.results.load import Run


def probes(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure: a panel for each probe and comparison. Raises UserError where no probe was measured."""
    found: list[Comparison] = []
    titles: list[str] = []
    members = [run for one in comparisons for run in runs_of(one, runs)]
    there = {record["protocol"] for run in members for record in run.records}
    for name in PROBES:
        if name in there:
            of_probe = measured("probes", name, runs, comparisons)
            found += of_probe
            titles += [f"{name}{', ' if title else ''}{title}" for title in panel_titles(of_probe)]
    if not found:
        hint = f"measure them: posenc eval run=DIR 'eval.protocols=[{','.join(PROBES)}]'"
        raise UserError("--plot-kind", "probes", "no run has measured a probe", hint=hint)
    return over_context(found, Names(found), titles, width, share=False)
