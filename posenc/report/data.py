"""Write a comparison for programs: CSV, a line for each cell, seed or document, and one JSON document."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.report.captions import answer
from posenc.results.comparison import Comparison
from posenc.results.run import Run
from posenc.results.schema import SCHEMA_VERSION

PER = ("cell", "seed", "document")
FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of a formula


def csv_of(comparisons: Sequence[Comparison], runs: Sequence[Run], per: str) -> str:
    """Return unrounded numbers, a unit a column, empty where there is none. `per` is one of PER."""
    if per not in PER:
        raise UserError("--per", per, "no such line", allowed=PER)
    rows = [
        {"protocol": one.header["protocol"], "metric": one.header["metric"], "row": row.label}
        | {key: value for key, value in vars(cell).items() if not hasattr(value, "__dict__")}
        for one in comparisons
        for row in one.rows
        for cell in row.cells
    ]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text([heads, *([row.get(head) for head in heads] for row in rows)])


def json_document(comparisons: Sequence[Comparison]) -> str:
    """Return the document of docs/schema.md; of several tables a list of them as `comparisons`.

    A perplexity that overflows is null, with the note `>1e30`.
    """
    documents = [{"summary": visible(answer(one))} | _finite(one.to_dict()) for one in comparisons]
    several = {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    return json.dumps(documents[0] if len(documents) == 1 else several, indent=2, allow_nan=False) + "\n"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV with text that no spreadsheet takes for a formula; None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([_csv_field(value) if isinstance(value, str) else value for value in row])
    return out.getvalue()


def _csv_field(value: str) -> str:
    shown = visible(value)
    return f"'{shown}" if shown.strip() and shown.lstrip()[0] in FORMULA else shown


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        clean = {key: _finite(item) for key, item in value.items()}
        if value.get("mean") == math.inf and "note" in value:
            clean["note"] = value["note"] or ">1e30"
        return clean
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
