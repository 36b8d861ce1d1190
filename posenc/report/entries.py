"""The text of a cell: the loss, the change with its word, or why there is no number."""

from __future__ import annotations

from dataclasses import dataclass

from rich.cells import cell_len

from posenc.report.words import length
from posenc.results.cells import Cell
from posenc.results.comparison import Column
from posenc.results.ranking import AgainstBaseline, Mark, short_verdict
from posenc.results.schema import printed, printed_change


@dataclass
class Entry:
    """The text of a cell: loss, change, verdict, note; a dash where there is nothing to say."""

    lines: list[str]
    mark: Mark | None

    @property
    def width(self) -> int:
        """The widest line, in terminal columns."""
        return max(map(cell_len, self.lines), default=0)


def entry(cell: Cell, metric: str, of: str | None, sign: str, baseline: bool = False) -> Entry:
    """One cell as text; `of` says what the table's +- is of, `sign` is how it is written.

    With a `baseline` in the table the difference to it stands where the change against the crop line stood.
    """
    lines = []
    if cell.mean is not None:
        spread = "" if of != "seeds" or cell.spread is None else sign + printed(cell.spread, metric)
        lines.append(printed(cell.mean, metric) + spread)
        if cell.against is not None:  # the baseline takes the place of the crop line
            lines += [_difference(cell.against, metric, sign), cell.against.word]
        elif cell.change is not None and (cell.multiple != 1 or cell.change != 0) and not baseline:
            lines.append(printed_change(cell.change, metric) + _change_spread(cell, metric, of, sign))
        if cell.verdict is not None and not baseline:
            lines.append(short_verdict(cell.verdict))
    if cell.note is not None and cell.mean is not None:  # the reason stands below the table
        lines.append(f"only {cell.seeds} seed" + ("s" if cell.seeds > 1 else ""))
    elif cell.note is not None:
        lines += cell.note.split(", ")
    return Entry(lines or ["-"], cell.mark)


def head(column: Column) -> str:
    """`4x` over its tokens; the training length is marked."""
    name = length(column.multiple) + (" (T)" if column.multiple == 1 else "")
    return name if column.window is None else f"{name}\n{column.window}"


def _difference(against: AgainstBaseline, metric: str, sign: str) -> str:
    half = "" if against.ci95 is None else sign + printed((against.ci95[1] - against.ci95[0]) / 2, metric)
    return printed_change(against.difference, metric) + half


def _change_spread(cell: Cell, metric: str, of: str | None, sign: str) -> str:
    if of == "seeds" and cell.change_spread is not None:
        return sign + printed(cell.change_spread, metric)
    if of == "documents" and cell.change_ci95 is not None:
        low, high = cell.change_ci95
        return sign + printed((high - low) / 2, metric)
    return ""
