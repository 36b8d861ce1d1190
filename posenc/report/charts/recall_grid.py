"""Recall by window and distance, as a grid of coloured cells for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posenc.report.charts.base import Chart, Panel, RowNames, short_number, source_sentence
from posenc.report.charts.grids import Square, grid_of_shares
from posenc.report.charts.looks import Look
from posenc.report.texts import percent_text
from posenc.results.beside.recall import RECALL


def recall_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return a panel for each row: its rows are windows, its columns distances, its cells the share found."""
    squares = [square for panel in panels for square in _recall_squares(panel, names)]
    if not squares:
        return None
    caption = f"Per cent of planted values found at a distance, in a window; {source_sentence(panels)}"
    return grid_of_shares("Recall", squares, ("distance (tokens)", "window (tokens)"), caption, look)


def _recall_squares(panel: Panel, names: RowNames) -> Iterator[Square]:
    """Yield each row's recall by window and distance, with as many pairs as in training."""
    for row in panel.comparison.rows:
        recall = RECALL.of(row)
        if recall is None:
            continue
        training_pairs = {cell.place.pairs for cell in recall.cells if cell is not None}
        title = f"{names.name(row)}, {panel.title}" if panel.title else names.name(row)
        for cell in recall.grid:
            # Other numbers of pairs have the same window and distance, and a square has room for one number.
            if cell.place.pairs in training_pairs:
                yield Square(
                    panel=title,
                    row=str(cell.place.window),
                    column=str(cell.place.distance),
                    meaning="recall",
                    text=percent_text(cell).removesuffix("%"),
                    shade=short_number(cell.accuracy),
                )
