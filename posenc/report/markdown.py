"""A comparison as a Markdown pipe table: `loss (change)` in each cell, the best in bold."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.escape import markdown as safe
from posenc.report.layout import entry, head
from posenc.report.terminal import ASCII
from posenc.report.words import captions, label, spread_is_of, title
from posenc.results.comparison import Comparison


def markdown(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """A title, a table and notes for each; `width` and `color` have no meaning here."""
    sign = "±" if unicode else ASCII["±"]
    return "\n".join(_one(comparison, sign) for comparison in comparisons)


def _one(comparison: Comparison, sign: str) -> str:
    heads = ["encoding", *(head(column).replace("\n", " = ") for column in comparison.columns)]
    lines = [f"**{safe(title(comparison))}**", "", _line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    for row in comparison.rows:
        cells = []
        for cell in row.cells:
            first, *rest = entry(cell, metric, of, sign).lines
            shown = f"**{safe(first)}**" if cell.best else safe(first)
            cells.append(shown + (f" ({safe(', '.join(rest))})" if rest else ""))
        lines.append(_line([safe(label(row)), *cells]))
    return (
        "\n".join(
            [*lines, "", *(f"- {safe(line.replace('±', sign))}" for line in captions(comparison, "bold:"))]
        )
        + "\n"
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
