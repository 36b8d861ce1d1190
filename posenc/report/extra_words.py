"""The sentences below the second, small table: context that is used, probes, slopes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from posenc.core.errors import visible
from posenc.results.cells import Probe
from posenc.results.comparison import Comparison
from posenc.results.ranking import EFFECTIVE

PROBE_NOTES = {
    "induction": "induction: the loss on the second copy of a random sequence, which only copying lowers.",
    "far-copy": "far-copy: the loss on targets that continue a text which last stood more than T tokens "
    "back, so that a window of T cannot see it.",
}


def over_seeds_and_documents(counts: Iterable[int]) -> str:
    """What intervals are over that were made from so many seeds each."""
    found = set(counts)
    if found == {1}:
        return "documents (these models only)"
    return "seeds and documents" + (" (of one seed: documents, these models only)" if 1 in found else "")


def extra_captions(comparison: Comparison) -> list[str]:
    """A line for each column of the second table."""
    rows, lines = comparison.rows, []
    if any(row.effective_context for row in rows):
        text = (
            f"effective context: the longest window whose loss is within {EFFECTIVE:g} nats of the row's "
            "best, so that more text does no harm, used or not"
        )
        longest = any(row.effective_context and row.effective_context.longest for row in rows)
        lines.append(text + ("; +: the longest that was measured" if longest else ""))
    uses = [row.uses_context for row in rows if row.uses_context]
    if uses:
        text = (
            "T against T/2: the loss at 1x minus that at 0.5x on the same targets, below 0 where text helps"
        )
        text += f", in {uses[0].unit}" if comparison.header["metric"] == "ppl" else ""
        of = over_seeds_and_documents(one.seeds for one in uses)
        intervals = any(one.ci95 for one in uses)
        lines.append(text + (f"; its ± is half the 95% interval over {of}" if intervals else ""))
    curves = [row.curve for row in rows if row.curve]
    if curves:
        of = "documents" if all(len(curve.breaks_at) == 1 for curve in curves) else "seeds"
        spread = (
            "half the 95% interval over documents"
            if of == "documents"
            else "the standard deviation over seeds"
        )
        sure = any(curve.slope_ci95 or curve.slope_spread is not None for curve in curves)
        lines.append(
            "slope: nats per token of loss, for each token past T" + (f"; its ± is {spread}" if sure else "")
        )
        lines.append(
            "breaks at: the start of the first bin past T that is 0.1 nats above the level at T with its "
            "whole 95% interval over documents; no break: every bin past T lies below that with its whole "
            "interval; unclear: neither, more documents are needed"
        )
    for i, probe in enumerate(comparison.probes):
        text = PROBE_NOTES.get(probe.protocol, f"{visible(probe.protocol)}.")
        text += f" In {visible(probe.unit)}, beside the loss and not ranked"
        text += "" if probe.same_targets else "; the rows scored different targets"
        lines.append(text + _above_chance([row.probes[i] for row in rows], probe.unit))
    if comparison.extensions:
        names = ", ".join(visible(one.name) for one in comparison.extensions)
        lines.append(
            f"{names}: test-time extensions of the row's runs; their change is against its crop line"
        )
    return lines


def _above_chance(probes: Sequence[Probe], unit: str) -> str:
    """Where no row does as well as guessing, which its unit names."""
    found = re.search(r"\(chance ([\d.]+)\)", unit)
    losses = [probe.cell.mean for probe in probes if probe.cell.mean is not None]
    if found is None or not losses or min(losses) <= float(found[1]):
        return ""
    return "; all rows are worse than chance: none of these models copies"
