"""Write reports: tables for a terminal, Markdown or LaTeX; and comparisons in each format of `compare`."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from posenc.core.errors import UserError, visible
from posenc.report.data import csv_lines, json_document
from posenc.report.table import MARKS, CellText, Report, Table, report_of
from posenc.results.comparison import Comparison, compare, tables_of
from posenc.results.load import Run
from posenc.results.ranking import Mark

FORMATS = ("table", "markdown", "csv", "latex", "json")
PIPED_WIDTH = 200  # a pipe has no width: wide enough for eight lengths in one block
GAP = 2  # a space before each number, and the place of its mark behind it
LEAST_LABEL = 10  # a name may be folded to this width
STYLES: dict[str | None, str] = {"lowest": "bold green", "tie": "green"}
NOTE_STYLES = {"pass": "green", "fail": "bold red"}
BOLD = {**MARKS, "lowest": "bold:"}
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: "\\" + character for character in "&%$#_{}"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "−": "$-$"}
PREAMBLE = r"% needs \usepackage{booktabs}; made by posenc compare --format latex"


def render(
    comparisons: Comparison | Sequence[Comparison], format: str, width: int, color: bool, unicode: bool = True
) -> str:
    """Return comparisons as text that ends with a newline; only the format `table` uses `width` and `color`.

    Without `unicode` ± is `+/-`. Raises UserError for a format that is not in FORMATS.
    """
    found = [comparisons] if isinstance(comparisons, Comparison) else comparisons
    match format:
        case "table":
            return terminal([report_of(one) for one in found], width, color, unicode)
        case "markdown":
            return markdown([report_of(one, BOLD) for one in found], unicode)
        case "latex":
            return latex([report_of(one, BOLD) for one in found])
        case "csv":
            return csv_lines(found)
        case "json":
            return json_document(found)
    raise UserError("--format", visible(format), "no such format", allowed=FORMATS)


def show(comparisons: Sequence[Comparison], format: str, stream: TextIO) -> None:
    """Print comparisons, as wide, coloured and plain as the stream can show."""
    write(render(comparisons, format, width_of(stream), color_of(stream), unicode_of(stream)), stream)


def show_run(run: Run, stream: TextIO) -> None:
    """Print one run's own tables, one for each protocol of `tables_of`."""
    show([compare([run], name, "nats", False) for name in tables_of([run])], "table", stream)


# --- the stream


def write(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks become escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def width_of(stream: TextIO) -> int:
    """Return the columns to print for: COLUMNS, the terminal's own width, or 200 for a pipe."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    except (OSError, ValueError, AttributeError):
        return PIPED_WIDTH


def color_of(stream: TextIO) -> bool:
    """Return whether styles belong on this stream: a capable terminal, or FORCE_COLOR."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


def unicode_of(stream: TextIO) -> bool:
    """Return whether the stream's encoding has the sign that a table uses."""
    try:
        "±".encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- terminal


def terminal(reports: Sequence[Report], width: int, color: bool, unicode: bool = True) -> str:
    """Return reports one below the other, at most `width` columns wide where the numbers allow.

    A number is never cut: columns that do not fit go below, names are folded. A note is printed once.
    """

    def text(shown: str, style: str = "") -> Text:
        return Text(visible(shown if unicode else shown.replace("±", "+/-")), style=style)

    drawn, noted = [], set[str]()
    for report in reports:
        report = replace(report, notes=[note for note in report.notes if note not in noted])
        noted.update(report.notes)
        drawn.append(_terminal(report, width, color, text))
    return "\n".join(drawn)


def _terminal(report: Report, width: int, color: bool, text: Callable[..., Text]) -> str:
    blocks = [list(_blocks(table, width, text)) for table in report.tables]
    widest = max((needed for parts in blocks for _, needed in parts), default=0)
    console = Console(
        file=io.StringIO(),
        width=max(width, widest),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )
    shown: list[RenderableType] = [text(line, "bold") for line in report.titles]
    shown += [text(report.answer)] if report.answer else []
    for table, parts in zip(report.tables, blocks, strict=True):
        for i, (block, _) in enumerate(parts):
            shown += ["", text(table.title, "bold"), block] if table.title and i == 0 else ["", block]
        for word, rest in table.notes:
            shown.append(Text.assemble(text(f"{word}:", NOTE_STYLES.get(word, "dim")), " ", text(rest)))
    shown += ["", *(text(note, "dim") for note in report.notes)] if report.notes else []
    for one in shown:
        console.print(one, overflow="fold")
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _blocks(table: Table, width: int, text: Callable[..., Text]) -> Iterator[tuple[RichTable, int]]:
    """Yield as few blocks of columns as fit, of equal size, each with the width that it needs."""
    names = [text(name, "bold") for name in (table.stub, *table.names)]
    heads = [[text(line) for line in head] for head in table.heads]
    cells = [[[text(line) for line in cell.lines] for cell in row] for row in table.cells]
    widths = [
        max(line.cell_len for line in [*head, *(line for row in cells for line in row[i])])
        for i, head in enumerate(heads)
    ]
    whole = max(name.cell_len for name in names)
    word = max(cell_len(word) for name in names for word in name.plain.split() or [""])
    least = min(whole, max(LEAST_LABEL, min(16, word)))
    for count in range(1, max(1, len(heads)) + 1):
        size = max(1, -(-len(heads) // count))
        ranges = [range(a, min(a + size, len(heads))) for a in range(0, max(1, len(heads)), size)]
        needs = [sum(widths[i] + GAP for i in columns) for columns in ranges]
        if least + max(needs) <= width:
            break
    for columns, needed in zip(ranges, needs, strict=True):
        stub = max(least, min(whole, width - needed))
        block = RichTable(box=None, padding=(0, 0), pad_edge=False, header_style="bold")
        block.add_column(names[0], width=stub, overflow="fold")
        for i in columns:
            head = Text("\n", style="bold cyan" if "(T)" in table.heads[i][0] else "bold").join(heads[i])
            block.add_column(head, width=widths[i] + 1, justify="right")
            block.add_column("", width=1)
        for name, row, entries in zip(names[1:], cells, table.cells, strict=True):
            block.add_row(name, *(part for i in columns for part in _cell(row[i], entries[i].mark)))
        yield block, stub + needed


def _cell(lines: Sequence[Text], mark: Mark | None) -> tuple[Text, Text]:
    """Return the text, and its mark in the column behind it."""
    style = STYLES.get(mark, "")
    lines[0].stylize(style)
    for line in lines[1:]:
        line.stylize("dim")
    return Text("\n").join(lines), Text(MARKS[mark] if mark else "", style=style)


# --- Markdown


def md(text: object) -> str:
    """Return one line that Markdown and its HTML leave as it is, also inside a pipe table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!$&])", r"\\\1", visible(text))


def markdown(reports: Sequence[Report], unicode: bool = True) -> str:
    """Return pipe tables with `loss mark (change, verdict)` in a cell, the lowest in bold, notes as lists."""
    found = "\n".join("\n".join(_markdown(report)) + "\n" for report in reports)
    return found if unicode else found.replace("±", "+/-")


def _markdown(report: Report) -> Iterator[str]:
    yield from (f"**{md(line)}**  " for line in report.titles[:-1])
    yield f"**{md(report.titles[-1])}**"
    if report.answer:
        yield from ("", md(report.answer))
    for table in report.tables:
        yield from ("", f"**{md(table.title)}**") if table.title else ()
        joint = " = " if any("(T)" in head[0] for head in table.heads) else " "
        yield from ("", _pipe([md(table.stub), *(md(joint.join(head)) for head in table.heads)]))
        yield _pipe(["---", *["---:"] * len(table.heads)])
        for name, row in zip(table.names, table.cells, strict=True):
            yield _pipe([md(name), *map(_markdown_cell, row)])
        if table.notes:
            yield ""
        yield from (f"- {md(word)}: {md(rest)}" for word, rest in table.notes)
    yield ""
    yield from (f"- {md(note)}" for note in report.notes)


def _markdown_cell(cell: CellText) -> str:
    first, *rest = map(md, cell.lines)
    shown = f"**{first}**" if cell.mark == "lowest" else f"{first} {MARKS[cell.mark]}" if cell.mark else first
    return shown + (f" ({', '.join(rest)})" if rest else "")


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# --- LaTeX


def tex(text: object) -> str:
    """Return what LaTeX prints as it is, in any font encoding: minus signs before numbers, no Unicode."""
    shown = re.sub(r"(?<![\w.)])-(?=\d)", "−", visible(text))
    out = [LATEX.get(character, character) for character in shown]
    return "".join(c if c.isascii() else f"[U+{ord(c):04X}]" for c in out).replace("--", "-{}-")


def latex(reports: Sequence[Report]) -> str:
    r"""Return a `table` environment with booktabs rules for each report, to be \input into a paper."""
    return "\n".join([PREAMBLE, *("\n".join(_latex(report)) + "\n" for report in reports)])


def _latex(report: Report) -> Iterator[str]:
    yield from (r"\begin{table}", r"\centering", r"\footnotesize")
    yield rf"\caption{{{tex(', '.join(report.titles))}}}"
    for i, table in enumerate(report.tables):
        yield from ("", r"\medskip") if i else ()
        yield from _tabular(table)
    yield from ("", r"\medskip", r"\begin{minipage}{\linewidth}", r"\raggedright\scriptsize")
    yield from (rf"{tex(line.rstrip('.'))}.\par" for line in [report.answer, *report.notes] if line)
    yield from (r"\end{minipage}", r"\end{table}")


def _tabular(table: Table) -> Iterator[str]:
    """A line for each line of a cell, so that a loss stands above its change, as in the terminal."""
    yield from (rf"\begin{{tabular}}{{@{{}}l{'r' * len(table.heads)}@{{}}}}", r"\toprule")
    for n in range(max(map(len, table.heads), default=0)):
        yield _ampersands([tex(table.stub) if n == 0 else "", *(tex(_line(head, n)) for head in table.heads)])
    yield r"\midrule"
    for i, (name, row) in enumerate(zip(table.names, table.cells, strict=True)):
        tall = max((len(one.lines) for one in row), default=1)
        if i and tall > 1:
            yield r"\addlinespace"
        for n in range(tall):
            yield _ampersands([tex(name) if n == 0 else "", *(_latex_cell(one, n) for one in row)])
    yield from (r"\bottomrule", r"\end{tabular}")


def _latex_cell(cell: CellText, n: int) -> str:
    text = tex(_line(cell.lines, n))
    if n or cell.mark is None:
        return text
    # the mark hangs over, so that the digits of a column stay below each other
    return rf"\textbf{{{text}}}" if cell.mark == "lowest" else rf"{text}\rlap{{{tex(MARKS[cell.mark])}}}"


def _line(lines: Sequence[str], n: int) -> str:
    return lines[n] if n < len(lines) else ""


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
