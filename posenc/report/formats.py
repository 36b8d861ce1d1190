"""Write comparisons in each format of `posenc compare`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.report.lines import cells_table
from posenc.report.papers import formulas_in, latex, markdown
from posenc.report.reports import full_report, paper_report, short_report
from posenc.report.sentences.answer import answer
from posenc.report.terminal import terminal_text
from posenc.results.comparison import Comparison
from posenc.settings.tree import SCHEMA_VERSION

TABLE_FORMATS = ("table", "markdown", "csv", "latex", "json")
FORMULA_SIGNS = "=+-@＝＋－＠"  # a spreadsheet takes a text that begins with one for a formula


def render(
    comparisons: Sequence[Comparison],
    format: str,
    width: int = 80,
    color: bool = False,
    *,
    full: bool = False,
    with_short_lengths: bool = False,
) -> str:
    """Return comparisons as text that ends with a newline; only the format `table` uses `width` and `color`.

    With `full` every number has its interval; with `with_short_lengths` there are lengths below T, too.
    Raises UserError for a format that is not in TABLE_FORMATS.
    """
    has_short_lengths = with_short_lengths or full
    match format:
        case "table" if full:
            return terminal_text([full_report(comparison) for comparison in comparisons], width, color)
        case "table":
            return terminal_text(
                [short_report(comparison, with_short_lengths) for comparison in comparisons], width, color
            )
        case "markdown":
            return markdown([paper_report(comparison, has_short_lengths) for comparison in comparisons])
        case "latex":
            # names that the user gave, which may hold formulas; any other `$` is a dollar
            names = [row.name for comparison in comparisons for row in comparison.rows if row.name]
            reports = [paper_report(comparison, has_short_lengths) for comparison in comparisons]
            return latex(reports, formulas_in(names))
        case "csv":
            return csv_text(cells_table(comparisons))
        case "json":
            return json_document(comparisons)
    raise UserError("--format", visible(format), "no such format", allowed=TABLE_FORMATS)


# --- JSON


def json_document(comparisons: Sequence[Comparison]) -> str:
    """Return the document of docs/schema.md; several tables are in a list, `comparisons`."""
    import orjson

    documents = []
    for comparison in comparisons:
        document = {"summary": visible(answer(comparison)), **comparison.to_dict()}
        _note_infinite_means(document)
        documents.append(document)
    # A single table is no list, since most readers of the JSON have one and would have to unpack it every
    # time.
    if len(documents) == 1:
        whole_document = documents[0]
    else:
        whole_document = {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    return orjson.dumps(whole_document, option=orjson.OPT_INDENT_2).decode() + "\n"


def _note_infinite_means(document: dict[str, Any]) -> None:
    """Give a perplexity that overflows a note: orjson writes it as null."""
    for row in document["rows"]:
        for cell in row["cells"]:
            if cell["mean"] == math.inf:
                cell["note"] = cell["note"] or ">1e30"


# --- CSV


def csv_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines that have the same keys as CSV, empty where there is no value.

    By the standard library: pandas would make floats of whole numbers beside an empty field.
    """
    if not lines:
        return "\n"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_csv_field(head) for head in lines[0]])
    for line in lines:
        writer.writerow([_csv_field(value) for value in line.values()])
    return text.getvalue()


def _csv_field(value: object) -> object:
    """Return a value as it is; a text so that no spreadsheet takes it for a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    # Some spreadsheets skip blanks before a formula, so that a blank in front must not hide one.
    looks_like_formula = text.lstrip().startswith(tuple(FORMULA_SIGNS))
    return f"'{text}" if looks_like_formula else text
