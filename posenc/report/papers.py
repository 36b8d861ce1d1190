"""Write reports for a paper: Markdown, and LaTeX by pandas."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posenc.core.errors import visible
from posenc.report.tables import BEST, Report, Table, TableCell

# By hand, since pandas escapes neither Unicode nor < > | " (which old font encodings print as others).
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
}
PREAMBLE = r"% needs \usepackage{booktabs}; made by posenc compare --format latex"


# --- Markdown


def markdown_text(text: object) -> str:
    """Escape a text for Markdown and its HTML, as one line, also inside a pipe table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!$&])", r"\\\1", visible(text))


def markdown(reports: Sequence[Report]) -> str:
    """Return facts in bold, the answer, pipe tables (the best in bold), and notes as a list."""
    return "\n".join(_markdown_report(report) for report in reports)


def _markdown_report(report: Report) -> str:
    blocks = [f"**{markdown_text(', '.join(report.facts))}**"]
    if report.answer:
        blocks.append(markdown_text(report.answer))
    for table in report.tables:
        if table.title:
            blocks.append(f"**{markdown_text(table.title)}**")
        blocks.append(_markdown_table(table))
    if report.notes:
        blocks.append("\n".join(f"- {markdown_text(note)}" for note in report.notes))
    return "\n\n".join(blocks) + "\n"


def _markdown_table(table: Table) -> str:
    """Return a pipe table without padding: a number that changes is one line of a diff, not all of them."""
    lines = [
        [markdown_text(head) for head in table.heads],
        _alignments(table, "---", "---:"),
        *([_markdown_cell(cell) for cell in row] for row in table.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _markdown_cell(cell: TableCell) -> str:
    if cell.mark == BEST:
        return f"**{markdown_text(cell.text)}**"
    return markdown_text(f"{cell.text} {cell.mark}".strip())


def _alignments(table: Table, left: str, right: str) -> list[str]:
    return [left if column is table.columns[0] or column.is_words else right for column in table.columns]


# --- LaTeX


def latex_text(text: object) -> str:
    """Escape a text for LaTeX in any font encoding: minus signs before numbers, no Unicode."""
    with_minus = re.sub(r"(?<![\w.)])-(?=\d)", "−", visible(text))
    escaped = [LATEX.get(character, character) for character in with_minus]
    ascii_only = [part if part.isascii() else f"[U+{ord(part):04X}]" for part in escaped]
    return "".join(ascii_only).replace("--", "-{}-")


def latex(reports: Sequence[Report]) -> str:
    r"""Return a `table` environment with booktabs rules for each report, to be \input into a paper."""
    blocks = [PREAMBLE]
    for report in reports:
        caption = latex_text(", ".join(report.facts))
        blocks += [_latex_table(table, caption, report.label) for table in report.tables]
    return "\n".join(blocks)


def _latex_table(table: Table, caption: str, label: str) -> str:
    import pandas as pd

    frame = pd.DataFrame([[_latex_cell(cell) for cell in row] for row in table.rows])
    frame.columns = pd.Index([latex_text(head) for head in table.heads])
    text: str = frame.style.hide(axis="index").to_latex(
        column_format="@{}" + "".join(_alignments(table, "l", "r")) + "@{}",
        position_float="centering",
        hrules=True,
        caption=caption,
        label=label,
    )
    return text.replace(r"\centering", "\\centering\n\\footnotesize")


def _latex_cell(cell: TableCell) -> str:
    text = latex_text(cell.text)
    if cell.mark == BEST:
        return rf"\textbf{{{text}}}"
    # The tilde hangs over, so that the digits of a column stay below each other.
    return text + r"\rlap{$\sim$}" if cell.mark else text
