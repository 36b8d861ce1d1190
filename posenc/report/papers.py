"""Write reports for a paper: Markdown, and LaTeX by pandas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from posenc.core.errors import visible
from posenc.report.latex_letters import latex_character
from posenc.report.tables import BEST, Report, Table, TableCell, TableColumn

# What a character becomes that LaTeX has no command for.
REPLACED = re.compile(r"\[U\+([0-9A-F]{4,6})\]")
# Between two `$` of a name that the user gives a row.
FORMULA = re.compile(r"\$[^$]+\$")
PREAMBLE = r"% needs \usepackage{booktabs}; made by posenc compare --format latex"
# Inside the environment of a table. Classes differ in which of the two skips stands between a caption and its
# table. In article it is 0pt, so that the caption would touch the rule.
SIZES = r"""\footnotesize
\setlength{\tabcolsep}{3pt}
\setlength{\abovecaptionskip}{6pt}
\setlength{\belowcaptionskip}{6pt}"""
# In points, to see which tables are wider than a column.
CHARACTER_WIDTH = 4.4  # of \footnotesize, on average over digits, signs and letters
GAP_WIDTH = 6.0  # between two columns of a table
COLUMN_WIDTH = 229.5  # of article in two columns; others have 219 (ACL) to 252 (IEEE)
PAGE_WIDTH = 469.0  # of article in two columns


# --- Markdown


def markdown_text(text: object) -> str:
    """Escape a text for Markdown and its HTML, as one line, also inside a pipe table."""
    # `$` too, since GitHub and notebooks set formulas between two of them.
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


def latex_text(text: object, formulas: Sequence[str] = ()) -> str:
    """Escape a text for LaTeX in any font encoding: minus signs before numbers, no Unicode.

    Formulas that the user wrote stay as they are. A character without a command becomes `[U+4E2D]`.
    """
    line = visible(text)
    if not formulas:
        return _escaped(line)
    pattern = "|".join(map(re.escape, formulas))
    parts = re.split(f"({pattern})", line)
    return "".join(part if part in formulas else _escaped(part) for part in parts)


def _escaped(line: str) -> str:
    # A hyphen behind a letter, a digit or a bracket is no minus sign, as in `3-5 seeds`.
    with_minus = re.sub(r"(?<![\w.)])-(?=\d)", "−", line)
    escaped = "".join(latex_character(character) or f"[U+{ord(character):04X}]" for character in with_minus)
    # TeX prints two hyphens as one dash, which would spoil the name of an option such as --full.
    return escaped.replace("--", "-{}-")


def formulas_in(names: Iterable[str]) -> list[str]:
    """Return the formulas `$...$` in names that the user gave rows."""
    return [formula for name in names for formula in FORMULA.findall(name)]


def replaced_characters(text: str) -> str:
    """Return the characters that stand in a LaTeX text as their numbers, each once."""
    return "".join(dict.fromkeys(chr(int(number, 16)) for number in REPLACED.findall(text)))


def latex(reports: Sequence[Report], formulas: Sequence[str] = ()) -> str:
    r"""Return a `table` environment with booktabs rules for each report, to be \input into a paper.

    `formulas` are parts of names that are LaTeX already.
    """
    blocks = [PREAMBLE]
    for report in reports:
        facts = ", ".join(report.facts)
        sentences = [_sentence(text) for text in (facts, *report.notes)]
        caption = latex_text(" ".join(sentences), formulas)
        blocks += [_latex_table(table, caption, report.label, formulas) for table in report.tables]
    return "\n".join(blocks)


def _sentence(note: str) -> str:
    """Return a note of a table as a sentence. A setting such as `beyond=untrained` keeps its small letter."""
    first_word = re.match(r"[a-z]+(?=[ :])", note)
    beginning = first_word[0].capitalize() if first_word else ""
    return beginning + note[len(beginning) :] + "."


def _latex_table(table: Table, caption: str, label: str, formulas: Sequence[str]) -> str:
    # Pandas takes 0.7 s to import, and no other format needs it.
    import pandas as pd

    width = _latex_width(table)
    frame = pd.DataFrame([[_latex_cell(cell, formulas) for cell in row] for row in table.rows])
    frame.columns = pd.Index([latex_text(head, formulas) for head in table.heads])
    text: str = frame.style.hide(axis="index").to_latex(
        column_format=_column_format(table),
        position_float="centering",
        hrules=True,
        caption=caption,
        label=label,
        # across both columns of a page; in a text of one column it is the same as `table`
        environment="table*" if width > COLUMN_WIDTH else "table",
    )
    # Inside the environment, the sizes leave the text of the paper alone.
    text = text.replace(r"\centering", f"\\centering\n{SIZES}")
    if width > PAGE_WIDTH:
        return f"% about {width:.0f}pt wide; with --columns 1x,8x it is narrower\n{text}"
    return text


def _column_format(table: Table) -> str:
    """Return the alignment of each column, as `tabular` takes them."""
    alignments = "".join(_alignments(table, "l", "r"))
    # The tilde behind a number hangs over into the gap, where words would touch it.
    spaced = alignments.replace("rl", r"r@{\hspace{10pt}}l")
    # `@{}` takes the space off both sides, so that the rules end where the text does.
    return f"@{{}}{spaced}@{{}}"


def _latex_width(table: Table) -> float:
    """Estimate the width of a table in points."""
    n_characters = sum(_longest_text(column) for column in table.columns)
    return n_characters * CHARACTER_WIDTH + (len(table.columns) - 1) * GAP_WIDTH


def _longest_text(column: TableColumn) -> int:
    """Return the characters of the longest text in a column."""
    texts = [column.head, *(cell.text for cell in column.cells)]
    return max(map(len, texts))


def _latex_cell(cell: TableCell, formulas: Sequence[str]) -> str:
    text = latex_text(cell.text, formulas)
    if text.startswith(("[", "*")):
        text = "{}" + text  # the row before ends with `\\`, which would take it as its argument
    if cell.mark == BEST:
        return rf"\textbf{{{text}}}"
    # The tilde hangs over, so that the digits of a column stay below each other.
    return text + r"\rlap{$\sim$}" if cell.mark else text
