"""The heat map of the protocol `needle`: facts found, by window and depth in the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posenc.report.charts.base import Chart, Panel, RowNames, short_number, source_sentence
from posenc.report.charts.grids import Square, grid_of_shares
from posenc.report.charts.looks import Look
from posenc.results.beside.needle import NEEDLE


def needle_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return a panel for each row and number of keys: its rows are depths, its columns windows."""
    squares = [square for panel in panels for square in _squares(panel, names)]
    if not squares:
        return None
    meaning = "Per cent of facts found in a window; depth 0 is the beginning of the text, 1 its end."
    caption = f"{meaning} {source_sentence(panels)}"
    return grid_of_shares("Facts found", squares, ("window (tokens)", "depth in the text"), caption, look)


def _squares(panel: Panel, names: RowNames) -> Iterator[Square]:
    """Yield the cells of each row."""
    for row in panel.comparison.rows:
        cells = NEEDLE.of(row) or ()
        # Only where it tells panels apart: a title has to fit above a narrow panel.
        has_several_keys = len({cell.keys for cell in cells}) > 1
        for cell in cells:
            parts = [names.name(row), panel.title]
            if has_several_keys:
                parts.append(f"{cell.keys} keys" if cell.keys > 1 else "1 key")
            yield Square(
                panel=", ".join(part for part in parts if part),
                row=f"{cell.depth:g}",
                column=str(cell.found.window),
                meaning="share",
                text=f"{100 * cell.found.share:.0f}",
                shade=short_number(cell.found.share),
            )
