"""Tables that can be sorted and filtered: the comparison, and the small second one beside it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posenc.report.entries import Entry, entry, head
from posenc.report.extras import extras
from posenc.report.page.markup import Html, el, join
from posenc.report.words import MARKS, spread_is_of
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row
from posenc.results.load import Run
from posenc.results.ranking import BETTER, COLLAPSED_WORD, SAME_WORD, WORSE
from posenc.results.schema import HUGE

CHIPS = {BETTER: "better", SAME_WORD: "same", WORSE: "worse", COLLAPSED_WORD: "collapsed"}
CHIPS |= {"unclear": "unclear", "lower": "better", "tie": "same", "higher": "worse"}
MEANS = {
    "lowest": "lowest of its length",
    "tie": "a tie with the lowest",
    "unclear": "cannot be told from the lowest",
}


@dataclass
class Line:
    """A row of a table: cells (`td` elements) behind its head, what it is filtered by."""

    head: Html
    cells: list[Html]
    states: list[str] = field(default_factory=list)


def table(
    caption: str,
    heads: Sequence[object],
    lines: Sequence[Line],
    by_change: bool = False,
    filtered: bool = True,
    marked: bool = False,
) -> Html:
    """A table in a box that scrolls sideways: sorted by any column, filtered by words and states.

    `by_change` adds the choice to sort by the change; `marked` leaves room for marks behind the numbers.
    """
    top = el("tr", *(_head(one, i == 0) for i, one in enumerate(heads)))
    body = [
        el(
            "tr",
            el("th", line.head, scope="row"),
            *line.cells,
            data_states=json.dumps(line.states) if line.states else None,
        )
        for line in lines
    ]
    grid = el("table", el("caption", caption, class_="unseen"), el("thead", top), el("tbody", *body))
    box = el("div", grid, class_="scroll", tabindex="0", role="region", aria_label=caption)
    tools = [_tools(lines, by_change)] if filtered else []
    return el("div", *tools, box, class_="table marked" if marked else "table")


def comparison_table(
    comparison: Comparison, names: Sequence[Html], runs: Mapping[str, Run], caption: str
) -> Html:
    """The cells of the comparison: loss, change, verdict, mark, or why there is no number."""
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    baseline = comparison.header["baseline"] is not None
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    lines = []
    for row, name in zip(comparison.rows, names, strict=True):
        entries = [entry(row.cells[i], metric, of, "±", baseline) for i in shown]
        cells = [_cell(one, row.cells[i]) for i, one in zip(shown, entries, strict=True)]
        lines.append(Line(name, [*cells, _status(row, runs)], states_of(row, runs)))
    heads = ["encoding", *(_length(head(comparison.columns[i])) for i in shown), "runs"]
    marked = any(cell.mark is not None for row in comparison.rows for cell in row.cells)
    return table(caption, heads, lines, by_change=True, marked=marked)


def extras_table(comparison: Comparison, names: Sequence[Html], caption: str) -> Html | None:
    """Effective context, T against T/2, probes, slopes; None where there is nothing to show."""
    heads, entries = extras(comparison, "±")
    if not heads:
        return None
    lines = [Line(name, [_cell(one) for one in row]) for name, row in zip(names, entries, strict=True)]
    return table(caption, ["encoding", *(_length(one) for one in heads)], lines, filtered=False)


def plain(value: object, number: float | None = None) -> Html:
    """A cell of text; sorted by `number` where there is one."""
    known = number is not None and abs(number) < HUGE
    return el("td", value, data_v=repr(float(number)) if known and number is not None else None)


def states_of(row: Row, runs: Mapping[str, Run]) -> list[str]:
    """The states of the row's runs, each once."""
    return sorted({runs[path].state for path in row.runs if path in runs})


def _status(row: Row, runs: Mapping[str, Run]) -> Html:
    count = Counter(runs[path].state for path in row.runs if path in runs)
    return plain(", ".join(f"{number} {state}" for state, number in sorted(count.items())))


def _cell(one: Entry, cell: Cell | None = None) -> Html:
    """Lines below each other; behind the first the mark, a word as a coloured one."""
    shown = []
    for i, line in enumerate(one.lines):
        if line in CHIPS:
            shown.append(el("span", line, class_=f"word {CHIPS[line]}"))
        elif i == 0 and (cell is None or cell.mean is not None):
            shown.append(el("span", line, _mark(one), class_="number"))
        else:
            shown.append(el("span", line, class_="change" if line[:1] in "+-" and len(line) > 1 else "why"))
    if cell is None:
        return el("td", join(shown))
    change = cell.change if cell.against is None else cell.against.difference
    return el("td", join(shown), data_v=_js(cell.mean), data_c=_js(change))


def _js(value: float | None) -> str:
    """A number as JavaScript reads it; what has none sorts last."""
    if value is None or math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _mark(one: Entry) -> Html:
    if one.mark is None:
        return Html("")
    return el("abbr", MARKS[one.mark], title=MEANS[one.mark], class_="mark")


def _length(text: str) -> Html:
    first, _, second = text.partition("\n")
    return join([first, el("small", second)] if second else [first], " ")


def _head(text: object, first: bool) -> Html:
    return el(
        "th",
        el("button", text, type="button"),
        scope="col",
        aria_sort="none",
        class_="stub" if first else None,
    )


def _tools(lines: Sequence[Line], by_change: bool) -> Html:
    """Controls, hidden until the script is there to obey them."""
    states = sorted({state for line in lines for state in line.states})
    found = [el("label", "Filter ", el("input", type="search", class_="filter", placeholder="name or word"))]
    if len(states) > 1:
        options = [el("option", "any", value=""), *(el("option", state, value=state) for state in states)]
        found.append(el("label", "Status ", el("select", *options, class_="states")))
    if by_change:
        options = [el("option", "loss", value="v"), el("option", "change", value="c")]
        found.append(el("label", "Lengths sort by ", el("select", *options, class_="by")))
    found.append(el("output", class_="count", aria_live="polite"))
    return el("div", *found, class_="tools", hidden=True)
