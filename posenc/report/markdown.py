"""A comparison as Markdown pipe tables: `loss mark (change, word)` in each cell, the best in bold."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.entries import Entry, entry, head
from posenc.report.escape import markdown as safe
from posenc.report.extras import extras
from posenc.report.summary import summary_sentence
from posenc.report.terminal import ASCII
from posenc.report.words import MARKS, captions, label, spread_is_of, title
from posenc.results.comparison import Comparison

BOLD = {**MARKS, "lowest": "bold:"}


def markdown(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """A title, a table or two and notes for each; `width` and `color` have no meaning here."""
    sign = "±" if unicode else ASCII["±"]
    return "\n".join(_one(comparison, sign) for comparison in comparisons)


def _one(comparison: Comparison, sign: str) -> str:
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    baseline = comparison.header["baseline"] is not None
    names = [label(row) for row in comparison.rows]
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    entries = [[entry(row.cells[i], metric, of, sign, baseline) for i in shown] for row in comparison.rows]
    lines = [f"**{safe(title(comparison))}**", ""]
    if said := summary_sentence(comparison):
        lines += [safe(said.replace("±", sign)), ""]
    lines += _table(names, [head(comparison.columns[i]).replace("\n", " = ") for i in shown], entries)
    heads, more = extras(comparison, sign)
    if heads:
        lines += ["", *_table(names, [text.replace("\n", " ") for text in heads], more)]
    notes = [f"- {safe(line.replace('±', sign))}" for line in captions(comparison, BOLD)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _table(names: Sequence[str], heads: Sequence[str], entries: Sequence[Sequence[Entry]]) -> list[str]:
    lines = [_line(["encoding", *map(safe, heads)]), _line(["---", *["---:"] * len(heads)])]
    for name, row in zip(names, entries, strict=True):
        lines.append(_line([safe(name), *map(_entry, row)]))
    return lines


def _entry(one: Entry) -> str:
    first, *rest = one.lines
    shown = f"**{safe(first)}**" if one.mark == "lowest" else safe(first)
    if one.mark is not None and one.mark != "lowest":
        shown += f" {MARKS[one.mark]}"
    return shown + (f" ({safe(', '.join(rest))})" if rest else "")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
