"""The losses by window: loss, change against T, interval and verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posenc.report.cell_texts import (
    LOSS_HEAD,
    change_text,
    half_width,
    has_curves,
    is_base,
    loss_text,
    verdict_interval,
)
from posenc.report.parts.base import CellColumn, ChartKind, CsvFields, ReportPart, with_interval
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.numbers import printed_change
from posenc.results.rows import Row
from posenc.results.statistics.documents import MIN_GROUPS
from posenc.results.statistics.verdicts import COLLAPSED_MARGIN, SAME_MARGIN

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look


def _window_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"multiple": cell.multiple, "window": cell.window, "seeds": cell.seeds}


def _loss_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    # The metric is in the name, so that no column ever mixes two units.
    name = f"loss_{comparison.header.metric}"
    return {name: cell.mean, f"{name}_sd": cell.spread}


def _change_head(comparison: Comparison) -> str:
    # A curve is measured against its mean from T/2 to T and not against windows of T, so that it has another
    # word.
    return "rise" if has_curves(comparison) else "change"


def _change_column_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return "-" if is_base(row, cell) else change_text(comparison.header.metric, cell)


def _change_spread_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return "" if is_base(row, cell) else half_width(comparison.header.metric, cell.change_spread)


def _interval_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    """Return the interval that the verdict goes by, in the metric: of one seed half of it, else both ends.

    Perplexities of several seeds have none.
    """
    header = comparison.header
    if is_base(row, cell):
        return ""
    if cell.change_ci95 is not None:  # of one seed
        return half_width(header.metric, None, cell.change_ci95)
    interval = verdict_interval(header, cell)
    if interval is None:
        return ""
    low, high = interval
    return f"[{printed_change(low, header.metric)}, {printed_change(high, header.metric)}]"


def _change_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    name = f"change_{comparison.header.metric}"
    fields = {name: cell.change, f"{name}_sd": cell.change_spread}
    fields |= with_interval(name, cell.change, verdict_interval(comparison.header, cell))
    if cell.verdict is not None:  # the margins of a verdict are in bits per byte, whatever the metric
        fields |= with_interval("change_bpb", cell.verdict_change, cell.verdict_ci95)
    return fields


def _verdict_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    # An undertrained row loses little past T because it has learned little, so that `same` would flatter it.
    # The CSV keeps the word, and marks the row in the column `undertrained`.
    return "" if row.undertrained else cell.verdict_word


def _verdict_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"verdict": None if cell.verdict is None else str(cell.verdict)}


def _loss_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.losses import loss_chart  # here, since it imports altair

    return loss_chart(panels, names, look)


def _change_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.losses import change_chart

    return change_chart(panels, names, look)


def _change_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.change_grid import change_grid

    return change_grid(panels, names, look)


CELL_COLUMNS = (
    CellColumn(csv=_window_csv),
    CellColumn(
        head=lambda comparison: LOSS_HEAD,
        text=lambda comparison, row, cell: loss_text(comparison.header.metric, cell),
        csv=_loss_csv,
        terms=(
            ("loss", "nats/token, or nats/byte where a token is a byte; --metric bpb, ppl"),
            ("1x (T)", "the crop line: the loss if you truncate the text to T tokens"),
        ),
    ),
    CellColumn(
        head=lambda comparison: "sd",
        text=lambda comparison, row, cell: half_width(comparison.header.metric, cell.spread),
    ),
    CellColumn(
        head=_change_head,
        text=_change_column_text,
        csv=_change_csv,
        terms=(
            ("change", "loss minus the loss at 1x as trained; above 0, longer text harms"),
            ("±", "several seeds: standard deviation over seeds; one seed: half the 95% CI"),
        ),
    ),
    CellColumn(
        head=lambda comparison: "95% CI",
        text=_interval_text,
        terms=(
            (
                "95% CI",
                "over test documents (by folder, book or article where known) and seeds; with one seed over "
                f"documents only: it says nothing about other seeds. With fewer than {MIN_GROUPS} folders, "
                "books or articles each document counts by itself, and the CI is too narrow if those of one "
                "folder are alike; posenc data info says where it is so",
            ),
        ),
    ),
    CellColumn(head=lambda comparison: f"sd of {_change_head(comparison)}", text=_change_spread_text),
    CellColumn(
        head=lambda comparison: "verdict",
        text=_verdict_text,
        csv=_verdict_csv,
        is_words=True,
        terms=(
            (
                "verdict",
                f"on the change in bits/byte, with its whole 95% CI: same within {SAME_MARGIN:g}, better or "
                f"worse beyond it, collapsed above {COLLAPSED_MARGIN:g}; unclear: the CI crosses "
                f"{SAME_MARGIN:g} on either side",
            ),
        ),
    ),
)

PART = ReportPart(
    cell_columns=CELL_COLUMNS,
    charts=(
        ChartKind(name="context", make=_loss_chart, page="losses"),
        ChartKind(name="change", make=_change_chart, page="losses"),
        ChartKind(name="heatmap", make=_change_grid, needs_full_width=True),
    ),
    order=10,
)
