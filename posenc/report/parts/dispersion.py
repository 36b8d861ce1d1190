"""What attention does by window, and why a row fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posenc.report.parts.base import ChartKind, CsvFields, ReportPart, RowColumn
from posenc.report.texts import share_text
from posenc.results.beside.dispersion import (
    DISPERSION,
    FAR_SHARE,
    SINK_LEFT,
    SINK_WEIGHT,
    SPREAD_SHARE,
    VARIANCE_LEFT,
    DispersionCell,
)
from posenc.results.comparison import Comparison
from posenc.results.numbers import printed_change
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

# read from the source by charts/names.py, for `--help`
CHARTS = {
    "why": "why rows fail, by length: entropy, first token and output variance of attention; far positions",
}
NO_DISPERSION = "no run has measured it: posenc eval run=DIR 'eval.protocols=[fixed-target,dispersion]'"


def _entropy_text(row: Row) -> str:
    """Return the entropy at T and in the longest window, mean of the layers: `2.52 to 4.64`."""
    return _from_t_to_longest(row, lambda cell: f"{cell.mean_entropy:.2f}")


def _first_token_text(row: Row) -> str:
    """Return the weight on the first token at T and in the longest window, mean of the layers: `7% to 1%`."""
    return _from_t_to_longest(row, lambda cell: share_text(cell.mean_first))


def _from_t_to_longest(row: Row, text_of: Callable[[DispersionCell], str]) -> str:
    """Return what attention does at T and in the longest window; empty without a number at T."""
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.at_t is None:
        return ""
    return f"{text_of(dispersion.at_t)} to {text_of(dispersion.longest)}"


def _variance_text(row: Row) -> str:
    """Return the variance of the outputs in the longest window as a multiple of that at T, `x0.31`."""
    dispersion = DISPERSION.of(row)
    ratio = None if dispersion is None else dispersion.variance_ratio
    return "" if ratio is None else f"x{ratio:.2g}"


def _far_text(row: Row) -> str:
    """Return how much far positions alone change the loss; empty if that was not measured."""
    dispersion = DISPERSION.of(row)
    if dispersion is None:
        return ""
    far_change = dispersion.far_change(dispersion.longest)
    return "" if far_change is None else printed_change(far_change, "nats")


def _why_text(row: Row) -> str:
    """Return the reasons of a collapse that the numbers support: `positions, spread`.

    `none` if they support no reason; empty if the row did not collapse or nothing was measured.
    """
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.reasons is None:
        return ""
    return ", ".join(dispersion.reasons) or "none"


def _dispersion_csv(comparison: Comparison, row: Row) -> CsvFields:
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.at_t is None:
        return {}
    return {
        "entropy_at_t": dispersion.at_t.mean_entropy,
        "entropy_at_longest": dispersion.longest.mean_entropy,
        "first_token_at_t": dispersion.at_t.mean_first,
        "first_token_at_longest": dispersion.longest.mean_first,
        "output_variance_ratio": dispersion.variance_ratio,
        "far_positions_nats": dispersion.longest.far_nats,  # the loss; the column `far` has its change
        "why": _why_text(row),
    }


def _chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.why import why_chart  # here, since it imports altair

    return why_chart(panels, names, look)


ROW_COLUMNS = (
    RowColumn(
        head=lambda comparison: "entropy",
        text=_entropy_text,
        csv=_dispersion_csv,
        terms=(
            (
                "entropy",
                "of attention at T and in the longest window, in nats, mean of the layers. It is log n for n "
                "keys with equal weights (protocol dispersion)",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "first token",
        text=_first_token_text,
        terms=(("first token", "the share of attention on the window's first token, the sink"),),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "variance",
        text=_variance_text,
        terms=(
            (
                "variance",
                "of the attention's outputs over the queries, as a multiple of that at T. It falls if "
                "attention becomes a mean over many keys",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "far",
        text=_far_text,
        terms=(
            (
                "far",
                "change of the loss, in nats, for the last T tokens alone, with the older half placed as far "
                "away as the longest window reaches. It shows the effect of unseen positions alone",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "why",
        text=_why_text,
        terms=(
            (
                "why",
                "the reasons why a collapsed row fails, defined in the next lines; none: none of these",
            ),
            ("positions", f"far is at least {FAR_SHARE:.0%} of the change of the loss"),
            (
                "spread",
                f"the entropy rises by at least {SPREAD_SHARE:.0%} of log(W/T), and the variance falls below "
                f"{VARIANCE_LEFT:.0%}",
            ),
            (
                "sink",
                f"the layer with most weight on the first token at T (at least {SINK_WEIGHT:.0%}) keeps less "
                f"than {SINK_LEFT:.0%} of it in the longest window",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    charts=(ChartKind(name="why", make=_chart, problem=NO_DISPERSION, page="losses"),),
    protocol=DISPERSION.protocol,
    order=120,
)
