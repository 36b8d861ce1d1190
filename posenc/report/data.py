"""Write a comparison for programs: CSV, a line for each row and window, and one JSON document."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from posenc.core.errors import visible
from posenc.report.captions import summary_sentence
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.schema import SCHEMA_VERSION

FIELDS = ["protocol", "metric", "unit", "encoding"]
FIELDS += ["extend", "beyond", "multiple", "window", "mean", "spread"]
FIELDS += ["change", "change_spread", "change_ci95_low", "change_ci95_high", "seeds", "mark"]
FIELDS += ["against_baseline", "against_baseline_low", "against_baseline_high", "against_baseline_word"]
FIELDS += ["verdict", "verdict_change", "verdict_ci95_low", "verdict_ci95_high"]  # bits per byte
FIELDS += ["above_lowest", "above_lowest_low", "above_lowest_high", "above_lowest_p"]  # Holm-corrected
FIELDS += ["effective_context", "uses_context", "uses_context_low", "uses_context_high", "reference"]
FIELDS += ["slope", "breaks_at", "targets", "documents", "note"]
FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of a formula


def csv_lines(comparisons: Sequence[Comparison]) -> str:
    """Return unrounded numbers, empty where there is none, `inf` for a perplexity that overflows.

    `above_lowest` is the row minus the lowest of its length; the JSON has all pairs of rows. What belongs to
    a row (context, probes, slope) is repeated on each of its lines.
    """
    mixed = sorted({key for one in comparisons for key in (*_mixed(one.header["mixed"]), *_facet(one))})
    probes = list(dict.fromkeys(name for comparison in comparisons for name in _probe_names(comparison)))
    head, tail = FIELDS[:4], [*FIELDS[4:-3], *probes, *FIELDS[-3:]]
    lines: list[list[object]] = [[*head, *mixed, *tail]]
    for comparison in comparisons:
        for row in comparison.rows:
            own, shared = _mixed(row.mixed) | _facet(comparison), _of_row(comparison, row)
            cells = [_of_cell(comparison, row, i) for i in range(len(comparison.columns))]
            # without columns a row without a number keeps its reason
            for values in (shared | cell for cell in cells or [{"note": "; ".join(row.notes)}]):
                between = (own.get(key) for key in mixed)
                lines.append([*(values[key] for key in head), *between, *(values.get(key) for key in tail)])
    return csv_text(lines)


def json_document(comparisons: Sequence[Comparison]) -> str:
    """Return the document of docs/schema.md; of several tables a list of them as `comparisons`.

    A perplexity that overflows is null, with the note `>1e30`.
    """
    documents = [{"summary": visible(summary_sentence(one))} | _finite(one.to_dict()) for one in comparisons]
    single = len(documents) == 1 and not _facet(comparisons[0])
    whole = documents[0] if single else {"schema_version": SCHEMA_VERSION, "comparisons": documents}
    return json.dumps(whole, indent=2, allow_nan=False) + "\n"


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


def _of_row(comparison: Comparison, row: Row) -> dict[str, object]:
    header, effective, uses, curve = comparison.header, row.effective_context, row.uses_context, row.curve
    values: dict[str, object] = {key: header[key] for key in FIELDS[:3]}
    values |= {"encoding": row.label, "extend": row.extend, "beyond": row.beyond}
    values["reference"] = None if header["reference"] is None else header["reference"]["mean"]
    values["effective_context"] = None if effective is None else effective.window
    if uses is not None:
        values["uses_context"] = uses.change
        values |= _ends("uses_context", uses.ci95)
    if curve is not None:
        seeds = zip(curve.breaks_at, curve.holds, strict=True)
        words = ("none" if holds else "unclear" if at is None else str(at) for at, holds in seeds)
        values |= {"slope": curve.slope, "breaks_at": " ".join(words)}
    cells = [*(probe.cell for probe in row.probes), *row.extensions]
    for name, cell in zip(_probe_names(comparison)[::2], cells, strict=True):
        if cell is not None:
            values |= {name: cell.mean, f"{name} change": cell.change}
    return values


def _of_cell(comparison: Comparison, row: Row, i: int) -> dict[str, object]:
    column, cell = comparison.columns[i], row.cells[i]
    names = ["multiple", "window", "mean", "spread", "change", "change_spread", "seeds", "mark"]
    values: dict[str, object] = {n: getattr(cell, n) for n in (*names, "verdict", "verdict_change", "note")}
    values |= _ends("change_ci95", cell.change_ci95) | _ends("verdict_ci95", cell.verdict_ci95)
    values |= {"targets": cell.targets, "documents": cell.documents}
    if cell.against is not None:
        values |= {"against_baseline": cell.against.difference, "against_baseline_word": cell.against.word}
        values |= _ends("against_baseline", cell.against.ci95)
    return values | _above_lowest(comparison, column, row, i)


def _facet(comparison: Comparison) -> dict[str, str]:
    facet = comparison.header["facet"]
    if facet is None:
        return {}
    return {f"facet_{facet['key']}" if facet["key"] in FIELDS else facet["key"]: facet["value"]}


def _mixed(values: Mapping[str, Any]) -> dict[str, Any]:
    """By the name of its column: `targets` is one of every line."""
    return {f"mixed_{key}" if key in FIELDS else key: value for key, value in values.items()}


def _above_lowest(comparison: Comparison, column: Column, row: Row, i: int) -> dict[str, object]:
    lowest = next((a for a, r in enumerate(comparison.rows) if r.cells[i].mark == "lowest"), None)
    own = next(a for a, r in enumerate(comparison.rows) if r is row)
    for pair in column.pairs:
        if {pair.a, pair.b} == {own, lowest} and pair.difference is not None:
            sign = 1 if pair.a == own else -1
            ends = None if pair.interval is None else sorted(sign * end for end in pair.interval)
            values: dict[str, object] = {"above_lowest": sign * pair.difference, "above_lowest_p": pair.p}
            return values | _ends("above_lowest", ends)
    return {}


def _ends(name: str, interval: Sequence[float] | None) -> dict[str, object]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _probe_names(comparison: Comparison) -> list[str]:
    """Two columns for each probe and each extension that is no row: its number, its change against 1x."""
    names = [f"{probe.protocol} {probe.multiple:g}x" for probe in comparison.probes]
    names += [f"{one.name} {one.multiple:g}x" for one in comparison.extensions]
    return [column for name in names for column in (name, f"{name} change")]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        clean = {key: _finite(item) for key, item in value.items()}
        if value.get("mean") == math.inf and "note" in value:
            clean["note"] = value["note"] or ">1e30"
        return clean
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
