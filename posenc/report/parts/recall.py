"""Recall: planted values found, by window and distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from posenc.report.cell_texts import horizon_text
from posenc.report.parts.base import ChartKind, Line, ReportPart, RowColumn, with_interval
from posenc.results.beside.base import LEARNED
from posenc.results.beside.recall import HORIZON_SHARE, RECALL, RecallCell, RowRecall
from posenc.results.comparison import Row

if TYPE_CHECKING:
    from posenc.report.chart import Chart, Panel, RowNames
    from posenc.report.looks import Look

CHARTS = {
    "recall": "share of planted values found, by window and distance",
    "use": "harm and use: recall against the change of the loss, in the longest window",
}
NO_RECALL = "no run was asked to recall: posenc train experiment=recall"


def _lines(row: Row) -> Iterator[Line]:
    """Yield a line of CSV for each window, distance and number of pairs."""
    recall = RECALL.of(row)
    if recall is not None:
        # Lines of their own and not columns of a window's line: a window has several distances and numbers of
        # pairs.
        for cell in recall.grid:
            yield _recall_fields(recall, cell)


def _recall_fields(recall: RowRecall, cell: RecallCell) -> Line:
    learning = recall.learning
    return {
        "protocol": RECALL.protocol,
        "target_set": None,  # windows are counted instead
        "multiple": cell.multiple,
        "window": cell.window,
        "seeds": cell.seeds,
        "distance": cell.distance,
        "pairs": cell.pairs,
        "windows": cell.windows,
        "recall": cell.accuracy,
        "recall_sd": cell.spread,
        **with_interval("recall", cell.accuracy, cell.ci95),
        "recall_seeds": None if learning is None else learning.seeds,
        "recall_seeds_learned": None if learning is None else learning.learned,
    }


def _grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.grid_charts import recall_grid  # here, since it imports altair

    return recall_grid(panels, names, look)


def _use_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.use_chart import use_chart

    return use_chart(panels, names, look)


ROW_COLUMNS = (
    RowColumn(
        head=lambda comparison: "recall horizon",
        text=lambda row: horizon_text(RECALL.of(row)),
        terms=(
            (
                "learned",
                f"how many seeds learned to recall: they find {LEARNED:g}% of the planted values within T "
                "(--recall-level). Its CI is that of a binomial: 3 of 3 mean a probability above 37%",
            ),
            (
                "recall@T",
                "share of the planted values found in windows of T by the seeds that learned, mean over "
                "the distances within T; @8x: at the farthest distance in windows of 8T. A guess finds one "
                "in data.plant.alphabet. Each seed draws its windows. The 95% CI is over these seeds; with "
                "one seed over its windows (Wilson's)",
            ),
            (
                "did not learn",
                "to recall: no seed did. The number in brackets is the mean of all seeds and has no rank: "
                "far text may be unused whatever the loss says",
            ),
            (
                "recall horizon",
                f"the largest distance, in the longest window, with at least {HORIZON_SHARE:.0%} of the "
                "recall within T",
            ),
        ),
    ),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    lines=_lines,
    charts=(
        ChartKind(name="recall", make=_grid, problem=NO_RECALL, protocol=RECALL.protocol),
        ChartKind(name="use", make=_use_chart, problem=NO_RECALL, page="losses"),
    ),
    protocol=RECALL.protocol,
    order=80,
)
