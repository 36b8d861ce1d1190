"""Write reports for a terminal, Markdown or LaTeX, and comparisons in each format of `compare`."""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from posenc.core.errors import UserError, plural, visible
from posenc.core.paths import choice_files
from posenc.report.captions import answer, cut
from posenc.report.table import (
    BEST,
    TIED,
    CellText,
    Report,
    Table,
    full_report_of,
    paper_report_of,
    report_of,
)
from posenc.results.comparison import CompareRequest, Comparison, compare_runs, protocols_of
from posenc.results.frame import cells_table
from posenc.results.load import Run, resume_command
from posenc.results.schema import HEADLINE, SCHEMA_VERSION

FORMATS = ("table", "markdown", "csv", "latex", "json")
PIPED_WIDTH = 100  # a pipe has no width
GAP = "  "
LEAST_NAME = 14  # a row's name may be cut to this width, so that all columns fit
LONGEST_NAME = 30  # where columns go below, so that names need not be cut
STYLES = {BEST: "bold green", TIED: "green"}
WORDS = {"better": "green", "same": "green", "collapsed": "red"}
WORDS |= {"finished": "green", "running": "cyan", "interrupted": "yellow"}
WORDS |= dict.fromkeys(("failed", "diverged", "dead", "damaged", "unknown"), "red")
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: "\\" + character for character in "&%$#_{}"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "−": "$-$"}
FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of a formula
PREAMBLE = r"% needs \usepackage{booktabs}; made by posenc compare --format latex"


def render(
    comparisons: Sequence[Comparison],
    format: str,
    width: int = 80,
    color: bool = False,
    *,
    full: bool = False,
    every: bool = False,
) -> str:
    """Return comparisons as text that ends with a newline; only the format `table` uses `width` and `color`.

    `full`: every number with its interval; `every`: lengths below T too. Raises UserError for a format that
    is not in FORMATS.
    """
    match format:
        case "table":
            reports = [full_report_of(one) if full else report_of(one, every) for one in comparisons]
            return terminal(reports, width, color)
        case "markdown" | "latex":
            papers = [paper_report_of(one, every or full) for one in comparisons]
            return markdown(papers) if format == "markdown" else latex(papers)
        case "csv":
            return csv_lines(cells_table(comparisons))
        case "json":
            return json_document(comparisons)
    raise UserError("--format", visible(format), "no such format", allowed=FORMATS)


def show_runs(runs: Sequence[Run], stream: TextIO, saved: Path | None = None) -> None:
    """Print the answer of runs at the end of a command: one screen; `saved` is the directory of the only one.

    Runs of several settings (a sweep over T) have a table each.
    """
    measured, width = protocols_of(runs), terminal_width()
    found = compare_runs(runs, CompareRequest(measured[0] if measured else HEADLINE))
    reports = [report_of(one) for one in found]
    if saved is not None:
        weak = any(row.undertrained for one in found for row in one.rows)
        reports[-1].tail += [f"saved  {saved}", f"next   {_next(runs[0], saved, weak, width)}"]
    write(terminal(reports, width, color_of(stream)), stream)


def _next(run: Run, saved: Path, weak: bool, width: int) -> str:
    """Return what to type next: the same with another encoding and more seeds, or with more training."""
    tokens = ((run.config or {}).get("train") or {}).get("tokens")
    if weak and isinstance(tokens, int):
        return f"train longer: train.tokens={10 * tokens} (now {tokens})"
    words = [word for word in shlex.split(resume_command(run) or "") if not word.startswith("seed=")]
    other = next(name for name in sorted(choice_files("encoding")) if f"encoding={name}" not in words)
    if not any(word.startswith("encoding.") for word in words):
        words = [f"{word},{other}" if word.startswith("encoding=") else word for word in words]
    sweep = shlex.join([*words[:2], "-m", *words[2:], "seed=0,1,2"])
    fits = words and len(sweep) + len("next   ") <= width
    return sweep if fits else f"posenc compare {saved.parent.parent}"


# --- the stream


def write(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks become escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def terminal_width() -> int:
    """Return the columns to print for: COLUMNS, the terminal's own width, or 100 for a pipe."""
    return shutil.get_terminal_size((PIPED_WIDTH, 0)).columns


def color_of(stream: TextIO) -> bool:
    """Return whether styles belong on this stream: a capable terminal, or FORCE_COLOR."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


# --- terminal


def terminal(reports: Sequence[Report], width: int, color: bool) -> str:
    """Return reports one below the other, `width` columns wide where the numbers allow.

    A number is never cut: lengths that do not fit are left out, or columns go below. A note is printed once.
    """
    console = Console(
        file=io.StringIO(),
        width=10_000,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        legacy_windows=False,
    )
    noted: set[str] = set()
    for i, report in enumerate(reports):
        told = [part for part in report.facts if i and all(part in other.facts for other in reports)]
        facts = [part for part in report.facts if part not in told] or report.facts
        lines = [Text("")] if i else []
        lines += [*_wrapped(" | ".join(facts), width, "bold"), Text("")]
        lines += [*_wrapped(report.answer, width), Text("")] if report.answer else []
        left_out, first = 0, True
        for table in report.tables:
            kept, dropped = fitting(table, width)
            left_out += dropped
            for block in _blocks(kept, width):
                lines += ([] if first else [Text("")]) + list(table_lines(block, width))
                first = False
        notes = [f"{plural(left_out, 'more length')}: a wider terminal, or --full"] if left_out else []
        notes = [note for note in [*notes, *report.notes] if note not in noted]
        noted.update(notes)
        lines += [Text("")] if notes and report.gap else []
        lines += [line for note in notes for line in _wrapped(note, width, "dim")]
        lines += [Text(visible(line), style="dim") for line in report.tail]
        for line in lines:
            line.rstrip()
            console.print(line, soft_wrap=True)
    return console.file.getvalue()  # type: ignore[attr-defined]


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    lines = Text(visible(text), style=style).wrap(Console(width=width, file=io.StringIO()), width)
    return list(lines)


def fitting(table: Table, width: int) -> tuple[Table, int]:
    """Return the table without those of its `drop` columns that do not fit, and their number."""
    kept, gone = list(range(len(table.heads))), 0
    for column in table.drop:
        used = sum(column_width(table, i) + len(GAP) for i in kept[1:])
        if used + min(column_width(table, 0), LEAST_NAME) <= width:
            break
        kept.remove(column)
        gone += 1
    return _part(table, kept), gone


def _blocks(table: Table, width: int) -> Iterator[Table]:
    """Yield the table in as few blocks of columns as fit."""
    keys = [*range(table.keys)]
    room = width - min(column_width(table, 0), LEAST_NAME if table.left else LONGEST_NAME)
    room -= sum(column_width(table, i) + len(GAP) for i in keys[1:])
    columns, used = keys, 0
    for i in range(table.keys, len(table.heads)):
        needed = column_width(table, i) + len(GAP)
        if used + needed > room and columns != keys:
            yield _part(table, columns)
            columns, used = keys, 0
        columns = [*columns, i]
        used += needed
    yield _part(table, columns)


def _part(table: Table, columns: Sequence[int]) -> Table:
    left = tuple(columns.index(i) for i in table.left if i in columns)
    rows = [[row[i] for i in columns] for row in table.rows]
    return Table([table.heads[i] for i in columns], rows, table.title, left, keys=table.keys)


def column_width(table: Table, column: int) -> int:
    """Return the columns of the terminal that a column needs, marks included."""
    marked = 2 if any(row[column].mark for row in table.rows) else 0
    texts = [cell_len(visible(row[column].text)) + marked for row in table.rows]
    return max([cell_len(visible(table.heads[column])), *texts])


def table_lines(table: Table, width: int) -> Iterator[Text]:
    widths = [column_width(table, i) for i in range(len(table.heads))]
    spare = width - sum(widths) - len(GAP) * (len(widths) - 1)
    widths[0] = max(min(widths[0], LEAST_NAME), widths[0] + min(0, spare))
    if table.title:
        yield Text(visible(table.title), style="bold")
    for n, row in enumerate([[CellText(head) for head in table.heads], *table.rows]):
        parts = []
        for i, cell in enumerate(row):
            text = Text(cut(cell.text, widths[i]) if i == 0 else visible(cell.text))
            marked = any(one[i].mark for one in table.rows)
            if n == 0:
                text.stylize("bold")
            elif cell.mark:
                text = Text(f"{text.plain} {cell.mark}", style=STYLES[cell.mark])
            else:
                text.stylize(WORDS.get(text.plain.partition(",")[0], ""))
            if n and marked and not cell.mark:
                text.append("  ")
            room = " " * (widths[i] - text.cell_len)
            parts.append(text + room if i in (0, *table.left) else Text(room) + text)
        yield Text(GAP).join(parts)


# --- papers


def md(text: object) -> str:
    """Return one line that Markdown and its HTML leave as it is, also inside a pipe table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!$&])", r"\\\1", visible(text))


def markdown(reports: Sequence[Report]) -> str:
    """Return facts in bold, the answer, pipe tables (the best in bold), and notes as a list."""
    return "\n".join("\n".join(_markdown(report)) + "\n" for report in reports)


def _markdown(report: Report) -> Iterator[str]:
    def cell(one: CellText) -> str:
        return f"**{md(one.text)}**" if one.mark == BEST else md(f"{one.text} {one.mark}".strip())

    yield f"**{md(', '.join(report.facts))}**"
    if report.answer:
        yield from ("", md(report.answer))
    for table in report.tables:
        yield from ("", f"**{md(table.title)}**") if table.title else ()
        yield from ("", _pipe(map(md, table.heads)))
        yield _pipe(["---", *("---" if i in table.left else "---:" for i in range(1, len(table.heads)))])
        yield from (_pipe(map(cell, row)) for row in table.rows)
    if report.notes:
        yield ""
    yield from (f"- {md(note)}" for note in report.notes)


def _pipe(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def tex(text: object) -> str:
    """Return what LaTeX prints as it is, in any font encoding: minus signs before numbers, no Unicode."""
    shown = re.sub(r"(?<![\w.)])-(?=\d)", "−", visible(text))
    out = [LATEX.get(character, character) for character in shown]
    return "".join(c if c.isascii() else f"[U+{ord(c):04X}]" for c in out).replace("--", "-{}-")


def latex(reports: Sequence[Report]) -> str:
    r"""Return a `table` environment with booktabs rules for each report, to be \input into a paper."""
    return "\n".join([PREAMBLE, *("\n".join(_latex(report)) + "\n" for report in reports)])


def _latex(report: Report) -> Iterator[str]:
    def cell(one: CellText) -> str:  # a mark hangs over, so that the digits of a column stay below each other
        if one.mark == BEST:
            return rf"\textbf{{{tex(one.text)}}}"
        return tex(one.text) + (r"\rlap{$\sim$}" if one.mark else "")

    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    yield from (r"\begin{table}", r"\centering", r"\footnotesize")
    yield from (rf"\caption{{{tex(', '.join(report.facts))}}}", rf"\label{{{report.name}}}")
    for table in report.tables:
        columns = "".join("l" if i in (0, *table.left) else "r" for i in range(len(table.heads)))
        yield from (rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule")
        yield from (line(map(tex, table.heads)), r"\midrule", *(line(map(cell, row)) for row in table.rows))
        yield from (r"\bottomrule", r"\end{tabular}")
    yield r"\end{table}"


# --- programs


def json_document(comparisons: Sequence[Comparison]) -> str:
    """Return the document of docs/schema.md; of several tables a list of them as `comparisons`.

    A perplexity that overflows is null, with the note `>1e30`.
    """
    import orjson

    documents = [{"summary": visible(answer(one))} | one.to_dict() for one in comparisons]
    for cell in (cell for one in documents for row in one["rows"] for cell in row["cells"]):
        if cell["mean"] == math.inf:  # which orjson writes as null
            cell["note"] = cell["note"] or ">1e30"
    several = {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    document = documents[0] if len(documents) == 1 else several
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n"


def csv_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines of results.frame as CSV: unrounded, a unit a column, empty where there is none."""
    out = io.StringIO()
    writer, heads = csv.writer(out, lineterminator="\n"), [*lines[0]] if lines else []
    for values in (heads, *(line.values() for line in lines)):
        writer.writerow([_csv_field(value) if isinstance(value, str) else value for value in values])
    return out.getvalue()


def _csv_field(value: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    shown = visible(value)
    return f"'{shown}" if shown.strip() and shown.lstrip()[0] in FORMULA else shown
