"""Tidy lines of comparisons, for CSV, pandas or a spreadsheet.

`pandas.DataFrame(cells_table(compare_runs(runs)))`. Protocols, extensions and the conditions that keep rows
out of one ranking are columns, always the same ones. A column has one unit, and numbers are not rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from posenc.report.parts import cell_columns, csv_lines, row_columns
from posenc.report.parts.base import Line, with_interval
from posenc.results.comparison import Comparison
from posenc.results.grouping import full_label
from posenc.results.identity import Conditions
from posenc.results.rows import Row
from posenc.results.seeds import SeedCell, seed_cells


def cells_table(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return a line for each row and window, means over seeds; a row without a window has its reason."""
    lines: list[Line] = []
    for comparison in comparisons:
        for row in comparison.rows:
            lines += _lines_of_row(comparison, row)
    return _aligned(lines)


def seeds_table(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return a line for each run and window."""
    lines: list[Line] = []
    for comparison in comparisons:
        for cell in seed_cells(comparison):
            lines.append({**LineHead.of(comparison, cell.row).columns(), **_seed_fields(cell)})
    return _aligned(lines)


@dataclass(frozen=True, kw_only=True)
class LineHead:
    """What tells the lines of a row from those of other rows and tables."""

    protocol: str
    row: str  # the label, with what tells its table from the others; no two rows of a protocol share it
    label: str
    encoding: str
    extend: str | None
    beyond: str | None
    conditions: Conditions | None  # None for a row that nothing is known of

    @classmethod
    def of(cls, comparison: Comparison, row: Row) -> LineHead:
        """Return the head of a row's lines."""
        return cls(
            protocol=comparison.header.protocol,
            # With what tells the tables apart: two tables may have a row of one label, and a pivot by this
            # column would mix them.
            row=full_label(row.label, {**comparison.header.group, **row.mixed}),
            label=row.label,
            encoding=row.encoding,
            extend=row.extend,
            beyond=row.beyond,
            conditions=row.conditions,
        )

    def columns(self) -> Line:
        """Return it as the first columns of a line, the conditions by their names without spaces."""
        line: Line = {
            "protocol": self.protocol,
            "row": self.row,
            "label": self.label,
            "encoding": self.encoding,
            "extend": self.extend,
            "beyond": self.beyond,
        }
        # All conditions, also those in which nothing differs, so that the files of two commands have the same
        # columns.
        for condition in fields(Conditions):
            value = None if self.conditions is None else getattr(self.conditions, condition.name)
            line[condition.name] = value
        return line


def _lines_of_row(comparison: Comparison, row: Row) -> Iterator[Line]:
    """Yield a line for each cell of a row, then the further ones, such as those of its recall."""
    head = LineHead.of(comparison, row).columns()
    row_fields: Line = {}
    for row_column in row_columns():
        row_fields |= row_column.csv(comparison, row)
    for cell in row.cells:
        line = dict(head)
        for cell_column in cell_columns():
            line |= cell_column.csv(comparison, row, cell)
        yield line | row_fields
    # A run without any number is a line, too: in a file that leaves it out nobody would miss it.
    if not row.cells:
        yield head | {"note": "; ".join(row.notes)}
    for line in csv_lines(row):
        yield head | line


def _seed_fields(cell: SeedCell) -> Line:
    """Return the columns of one run at one window; its intervals are over documents."""
    member = cell.member
    nats = cell.nats
    losses: Line = {
        "run": str(member.run.path),
        "seed": member.run.seed,
        "multiple": nats.multiple,
        "window": nats.window,
        "loss_nats": nats.mean,
        **with_interval("change_nats", nats.change, nats.change_ci95),
    }
    if cell.bits is not None:
        losses["loss_bpb"] = cell.bits.mean
        losses |= with_interval("change_bpb", cell.bits.change, cell.bits.change_ci95)
    first = member.measurements[0] if member.measurements else None
    return {
        **losses,
        "verdict": None if nats.verdict is None else str(nats.verdict),
        "targets": nats.targets,
        "documents": nats.documents,
        "corpus": None if first is None else first.corpus,
        "checkpoint_step": None if first is None else first.step,
        "note": nats.note,
    }


def _aligned(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with the keys of all, in the order of their first appearance."""
    all_lines = list(lines)
    # A row without a recall lacks those columns, and neither CSV nor pandas takes lines of different keys
    # well.
    empty_line = dict.fromkeys(key for line in all_lines for key in line)
    return [empty_line | line for line in all_lines]
