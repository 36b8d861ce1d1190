"""A comparison for programs: CSV (a line for each encoding and window) and one JSON document."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from posenc.report.escape import csv_text
from posenc.results.comparison import Comparison
from posenc.results.records import SCHEMA_VERSION

FIELDS = [
    "protocol",
    "metric",
    "unit",
    "encoding",
    "extend",
    "beyond",
    "multiple",
    "window",
    "mean",
    "spread",
]
FIELDS += ["change", "change_spread", "change_ci95_low", "change_ci95_high", "seeds", "best"]
FIELDS += ["targets", "documents", "note"]


def csv_lines(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """Unrounded numbers; empty where there is none; `inf` for a perplexity that overflows."""
    mixed = sorted({key for comparison in comparisons for key in comparison.header["mixed"]})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*FIELDS[:4], *mixed, *FIELDS[4:]])
    for comparison in comparisons:
        header = [comparison.header[key] for key in FIELDS[:3]]
        for row in comparison.rows:
            name = [row.label, *(row.mixed.get(key) for key in mixed), row.extend, row.beyond]
            for column, cell in zip(comparison.columns, row.cells, strict=True):
                low, high = cell.change_ci95 or (None, None)
                numbers = [
                    cell.multiple,
                    cell.window,
                    cell.mean,
                    cell.spread,
                    cell.change,
                    cell.change_spread,
                ]
                rest = [low, high, cell.seeds, int(cell.best), column.targets, column.documents, cell.note]
                writer.writerow([_field(value) for value in (*header, *name, *numbers, *rest)])
            if not comparison.columns:  # a row without a number keeps its reason
                empty = [None] * (len(FIELDS) - 7)
                writer.writerow([_field(value) for value in (*header, *name, *empty, "; ".join(row.notes))])
    return out.getvalue()


def json_document(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """{schema_version, header, columns, rows}; for several protocols a list of these as `comparisons`.

    Numbers are unrounded. A perplexity that overflows is null, with the note `>1e30`.
    """
    documents = [_finite(comparison.to_dict()) for comparison in comparisons]
    whole = (
        documents[0] if len(documents) == 1 else {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    )
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


def _field(value: object) -> object:
    return csv_text(value) if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        clean = {key: _finite(item) for key, item in value.items()}
        if value.get("mean") == math.inf and "note" in value:
            clean["note"] = value["note"] or ">1e30"
        return clean
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
