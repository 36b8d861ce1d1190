"""The table of the protocol `needle`: facts found, by depth and window, with an interval for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posenc.report.tables import Table, table_of_rows
from posenc.report.texts import length_text, percent_interval
from posenc.results.records import NEEDLE, Record
from posenc.results.runs import Run
from posenc.results.statistics.proportions import wilson


@dataclass(frozen=True)
class NeedleCell:
    """The facts found at a depth in windows of one length."""

    extend: str | None
    depth: float  # 0 is the beginning of the text, 1 its end
    keys: int
    multiple: float  # of T: the window
    window: int  # tokens
    correct: int
    answers: int

    @property
    def share(self) -> float:
        """Return the share of facts found."""
        return self.correct / self.answers

    @property
    def text(self) -> str:
        """Return the share and its 95% interval, `98 [91, 100]`."""
        interval = wilson(self.share, self.answers)
        return f"{100 * self.share:.0f} {percent_interval(interval)}"


def needle_cells(run: Run) -> list[NeedleCell]:
    """Return what a run found, in the order of its records."""
    return [cell for record in run.records for cell in _cells_of(record)]


def _cells_of(record: Record) -> Iterator[NeedleCell]:
    counts = record.get("needle")
    if record["protocol"] != NEEDLE or counts is None:
        return
    extend = record["extend"]
    columns = zip(counts["depth"], counts["keys"], counts["correct"], counts["answers"], strict=True)
    for depth, keys, correct, answers in columns:
        yield NeedleCell(
            extend=None if extend is None else extend["name"],
            depth=depth,
            keys=keys,
            multiple=record["multiple"],
            window=record["window"],
            correct=correct,
            answers=answers,
        )


def needle_tables(runs: Sequence[Run]) -> list[Table]:
    """Return a table for each run, extension and number of keys, with a row a depth and a column a window."""
    tables = []
    for run in runs:
        cells = needle_cells(run)
        cells_of_table: dict[tuple[str | None, int], list[NeedleCell]] = defaultdict(list)
        for cell in cells:
            cells_of_table[cell.extend, cell.keys].append(cell)
        for (extend, keys), chosen in cells_of_table.items():
            tables.append(_table(chosen, _title(run, extend, keys)))
    return tables


def _title(run: Run, extend: str | None, keys: int) -> str:
    name = run.name if extend is None else f"{run.name} +{extend}"
    among = "" if keys == 1 else f" among {keys}"
    return f"{name}: % of facts found{among}, by depth in the text and window [95% CI]"


def _table(cells: Sequence[NeedleCell], title: str) -> Table:
    windows = sorted({(cell.window, cell.multiple) for cell in cells})
    depths = sorted({cell.depth for cell in cells})
    text_of = {(cell.depth, cell.window): cell.text for cell in cells}
    rows = []
    for depth in depths:
        texts = [text_of.get((depth, window), "-") for window, _ in windows]
        rows.append([f"{depth:g}", *texts])
    heads = ["depth", *(length_text(round(multiple, 4)) for _, multiple in windows)]
    return table_of_rows(heads, rows, title)
