"""Memory by window: how far predictions move when text farther back comes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posenc.core.quantities import length_text
from posenc.report.cell_texts import half_width
from posenc.report.parts.base import (
    CellColumn,
    ChartKind,
    CsvFields,
    ReportPart,
    RowColumn,
    with_interval,
)
from posenc.results.beside.memory import MEMORY, ShorterWindow
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

CHARTS = {
    "memory": "how far next-token distributions move when text farther back than a window comes in",
}
NO_MEMORY = "no run has measured it: posenc eval run=DIR 'eval.protocols=[fixed-target,memory]'"


def _farther_back(row: Row, cell: Cell) -> ShorterWindow | None:
    """Return the comparison that the memory of a cell is; None where it was not measured."""
    memory = MEMORY.of(row)
    memory_cell = None if memory is None else memory.cell_at(cell.multiple)
    return None if memory_cell is None else memory_cell.farther_back


def _memory_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    memory = _farther_back(row, cell)
    return "" if memory is None else f"{memory.variation:.3f}"


def _right_token_text(row: Row, cell: Cell) -> str:
    """Return what the right token gains and loses, `+0.012 -0.104`."""
    memory = _farther_back(row, cell)
    return "" if memory is None else f"+{memory.gained:.3f} -{memory.lost:.3f}"


def _memory_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    memory = _farther_back(row, cell)
    if memory is None:
        return {}
    return {
        **with_interval("memory", memory.variation, memory.ci95),
        "memory_sd": memory.spread,
        "memory_farther_than": memory.window,
        "right_token_gains": memory.gained,
        "right_token_loses": memory.lost,
    }


def _memory_at_t_text(row: Row) -> str:
    memory = MEMORY.of(row)
    at_t = None if memory is None else memory.cell_at(1)
    return "" if at_t is None else _memory_with_interval(at_t.farther_back)


def _longest_memory_head(comparison: Comparison) -> str:
    """Return `memory@8x`, of the longest window."""
    return f"memory@{length_text(comparison.columns[-1].multiple)}"


def _longest_memory_text(row: Row) -> str:
    memory = _farther_back(row, row.cells[-1]) if row.cells else None
    return "" if memory is None else _memory_with_interval(memory)


def _memory_with_interval(memory: ShorterWindow) -> str:
    """Return `0.214±0.003`: with the standard deviation over seeds, or half the interval of one seed."""
    # `nats` for its three digits: a memory is a probability and has no unit.
    return f"{memory.variation:.3f}{half_width('nats', memory.spread, memory.ci95)}"


def _longest_right_token_text(row: Row) -> str:
    return _right_token_text(row, row.cells[-1]) if row.cells else ""


def _chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.memory import memory_chart  # here, since it imports altair

    return memory_chart(panels, names, look)


CELL_COLUMNS = (
    CellColumn(
        head=lambda comparison: MEMORY.protocol,
        text=_memory_text,
        csv=_memory_csv,
        terms=(
            (
                "memory",
                "how far the next-token distribution moves when text farther back comes in: the total "
                "variation, mean over targets; 0: not at all, 1: wholly. Past T that is all text before the "
                "last T tokens, up to T the older half of the window (protocol memory). It is not use: a "
                "model that breaks in long windows moves far as well, and its loss rises",
            ),
        ),
    ),
    CellColumn(
        head=lambda comparison: "right token",
        text=lambda comparison, row, cell: _right_token_text(row, cell),
        terms=(
            (
                "right token",
                "of the memory: the probability that the right token gains where it gains, and loses where "
                "it loses, each a mean over all targets. The rest moves between wrong tokens",
            ),
        ),
    ),
)

ROW_COLUMNS = (
    RowColumn(
        head=lambda comparison: "memory@T",
        text=_memory_at_t_text,
        protocol=MEMORY.protocol,
    ),
    RowColumn(
        head=_longest_memory_head,
        text=_longest_memory_text,
        protocol=MEMORY.protocol,
    ),
    RowColumn(
        head=lambda comparison: "right token",
        text=_longest_right_token_text,
        protocol=MEMORY.protocol,
    ),
)

PART = ReportPart(
    cell_columns=CELL_COLUMNS,
    row_columns=ROW_COLUMNS,
    charts=(ChartKind(name="memory", make=_chart, problem=NO_MEMORY, page="losses"),),
    protocol=MEMORY.protocol,
    order=130,
)
