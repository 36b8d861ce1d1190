r"""A comparison as LaTeX: a `table` of booktabs rules for each grid, to be \input into a paper."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.entries import Entry, entry, head
from posenc.report.escape import latex as safe
from posenc.report.extras import extras
from posenc.report.summary import summary_sentence
from posenc.report.words import MARKS, captions, label, spread_is_of, title
from posenc.results.comparison import Comparison

BOLD = {**MARKS, "lowest": "bold:"}
PREAMBLE = r"% needs \usepackage{booktabs}; made by posenc compare --format latex"


def latex(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """One `table` environment for each comparison; `width`, `color` and `unicode` have no meaning here."""
    return "\n".join([PREAMBLE, *(_one(comparison) for comparison in comparisons)])


def _one(comparison: Comparison) -> str:
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    baseline = comparison.header["baseline"] is not None
    names = [label(row) for row in comparison.rows]
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    entries = [[entry(row.cells[i], metric, of, "±", baseline) for i in shown] for row in comparison.rows]
    heads, more = extras(comparison, "±")
    lines = [r"\begin{table}", r"\centering", r"\footnotesize", rf"\caption{{{safe(title(comparison))}}}"]
    lines += _tabular(names, [head(comparison.columns[i]) for i in shown], entries)
    if heads:
        lines += ["", r"\medskip", *_tabular(names, heads, more)]
    said = [summary_sentence(comparison), *captions(comparison, BOLD)]
    notes = [rf"{safe(line.rstrip('.'))}.\par" for line in said if line]
    lines += ["", r"\medskip", r"\begin{minipage}{\linewidth}", r"\raggedright\scriptsize", *notes]
    return "\n".join([*lines, r"\end{minipage}", r"\end{table}"]) + "\n"


def _tabular(names: Sequence[str], heads: Sequence[str], entries: Sequence[Sequence[Entry]]) -> list[str]:
    r"""A line for each line of a cell, so that a loss stands above its change, as in the terminal."""
    tall = max(text.count("\n") for text in heads) + 1 if heads else 1
    lines = [rf"\begin{{tabular}}{{@{{}}l{'r' * len(heads)}@{{}}}}", r"\toprule"]
    for n in range(tall):
        lines.append(_line(["", *(_part(text.split("\n"), n) for text in heads)]))
    lines.append(r"\midrule")
    for i, (name, row) in enumerate(zip(names, entries, strict=True)):
        lines += [r"\addlinespace"] if i and len(row) and max(len(one.lines) for one in row) > 1 else []
        for n in range(max((len(one.lines) for one in row), default=1)):
            lines.append(_line([safe(name) if n == 0 else "", *(_cell(one, n) for one in row)]))
    return [*lines, r"\bottomrule", r"\end{tabular}"]


def _cell(one: Entry, n: int) -> str:
    text = _part(one.lines, n)
    if n or one.mark is None:
        return text
    # the mark hangs over, so that the digits of a column stay below each other
    return rf"\textbf{{{text}}}" if one.mark == "lowest" else rf"{text}\rlap{{{safe(MARKS[one.mark])}}}"


def _part(lines: Sequence[str], n: int) -> str:
    return safe(lines[n]) if n < len(lines) else ""


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
