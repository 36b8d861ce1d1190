"""Tables of shares by window, each with its interval: what `needle` and `ruler` found."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.quantities import length_text
from posenc.report.tables import Table, table_of_rows
from posenc.report.texts import percent_interval
from posenc.results.beside.found_values import FoundValues


def table_of_shares(first_head: str, heads: Sequence[str], found: Sequence[FoundValues], title: str) -> Table:
    """Return a table with a line for each distinct head; heads[i] is the line of found[i]."""
    multiples = sorted({values.multiple for values in found})  # windows as multiples of T, a column each
    text_of = {(head, values.multiple): _cell_text(values) for head, values in zip(heads, found, strict=True)}
    lines = []
    for head in dict.fromkeys(heads):
        # A short window has no room for some tasks or depths.
        texts = [text_of.get((head, multiple), "-") for multiple in multiples]
        lines.append([head, *texts])
    # at most four decimals: 1.3333x
    lengths = [length_text(round(multiple, 4)) for multiple in multiples]
    return table_of_rows([first_head, *lengths], lines, title)


def _cell_text(found: FoundValues) -> str:
    """Return the share and its 95% interval, `98 [91, 100]`."""
    return f"{100 * found.share:.0f} {percent_interval(found.ci95)}"
