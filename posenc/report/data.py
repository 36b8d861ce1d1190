"""Write a comparison for programs: CSV and one JSON document."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posenc.core.errors import visible
from posenc.report.captions import answer
from posenc.results.comparison import Comparison
from posenc.results.schema import SCHEMA_VERSION

FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of a formula


def json_document(comparisons: Sequence[Comparison]) -> str:
    """Return the document of docs/schema.md; of several tables a list of them as `comparisons`.

    A perplexity that overflows is null, with the note `>1e30`.
    """
    documents = [{"summary": visible(answer(one))} | _finite(one.to_dict()) for one in comparisons]
    several = {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    return json.dumps(documents[0] if len(documents) == 1 else several, indent=2, allow_nan=False) + "\n"


def csv_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines of results.frame as CSV: unrounded, a unit a column, empty where there is none."""
    heads = list(dict.fromkeys(key for line in lines for key in line))
    return csv_text([heads, *([line.get(head) for head in heads] for line in lines)])


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
