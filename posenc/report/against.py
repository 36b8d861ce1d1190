"""Put a comparison beside a published table; `results/published.csv` has a row for each printed number."""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, TextIO

from posenc.core.errors import UserError
from posenc.report.captions import POLICY, millions
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import color_of, markdown, terminal, width_of, write
from posenc.results.comparison import CompareRequest, compare_runs, protocols_of
from posenc.results.load import Run
from posenc.results.schema import HEADLINE, INFLATED, SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

FORMATS = ("table", "markdown", "json")
HEADS = ["encoding", "T there", "length", "published", "change", "measured", "change", "difference"]
# The published length nearest to one of ours stands beside it up to this ratio: alibi-table2 goes from 3 to 5
# times 512 tokens, and 2512 is its length for our 4x. Each such pair is printed with both.
NEAR = math.log(1.25)
PROTOCOLS = (HEADLINE, "sliding", INFLATED)  # that score text in windows of a length, as the papers do


@functools.cache
def published() -> tuple[dict[str, Any], ...]:
    """Return every published number, in the order of the file, with `nats` per token of its tokenizer."""
    text = files("posenc.results").joinpath("published.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    for row in rows:
        row |= {"train_length": int(row["train_length"]), "eval_length": int(row["eval_length"])}
        row |= {"value": float(row["value"]), "multiple": row["eval_length"] / row["train_length"]}
        row["nats"] = math.log(row["value"]) if row["metric"] == "ppl" else row["value"]
    return tuple(rows)


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(dict.fromkeys(row["table"] for row in published()))


def against(runs: Sequence[Run], table: str) -> dict[str, Any]:
    """Put the runs beside a published table, by the protocol that comes nearest to the paper's.

    Where no run was measured by that one, by the next of PROTOCOLS. Of the runs that can share a ranking, the
    most; a row with options of its own is not the paper's. Return both sides' settings, notes, and `rows`:
    losses and changes in nats per token, null where one side has none. Raises UserError.
    """
    rows = [row for row in published() if row["table"] == table]
    if not rows:
        raise UserError("--against", table, "there is no such table", allowed=tables())
    theirs = rows[0]["protocol"]
    nearest = next((name for name in PROTOCOLS if theirs.startswith(name)), HEADLINE)
    there = protocols_of(runs)
    protocol = next((name for name in (nearest, *PROTOCOLS) if name in there), HEADLINE)
    comparison, *others = compare_runs(runs, CompareRequest(protocol))
    cells = {(POLICY.sub("", row.label), c.multiple): c for row in comparison.rows for c in row.cells}
    missing = sorted({row["encoding"] for row in rows} - {name for name, _ in cells})
    notes = {
        f"protocols differ: {theirs} there, {protocol} here": not theirs.startswith(protocol),
        f"published and not measured: {', '.join(missing)}": missing,
        f"not compared: {len(others)} more tables of runs with other settings": others,
    }
    measured = [column.multiple for column in comparison.columns]
    bases = {(row["encoding"], row["train_length"]): row for row in rows if row["multiple"] == 1}
    entries = []
    for row in sorted(rows, key=lambda one: (one["train_length"], one["encoding"], one["eval_length"])):
        own = [one["multiple"] for one in rows if one["train_length"] == row["train_length"]]
        multiple = _place(row["multiple"], own, measured)
        cell = cells.get((row["encoding"], multiple or 0))
        base = bases.get((row["encoding"], row["train_length"]))
        change = None if base is None or base is row else row["nats"] - base["nats"]
        ours = None if cell is None or multiple == 1 else cell.change
        entries.append(
            {
                "encoding": row["encoding"],
                "train_length": row["train_length"],
                "published_length": row["eval_length"],
                "published": row["value"],
                "published_change": change,
                "multiple": multiple,
                "measured": None if cell is None else cell.mean,
                "measured_change": ours,
                "measured_spread": None if cell is None or ours is None else cell.change_spread,
                "difference": None if change is None or ours is None else ours - change,
            }
        )
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    return {
        "table": table,
        "published": {key: " | ".join(dict.fromkeys(row[key] for row in rows)) for key in keys},
        "measured": comparison.header,
        "notes": [note for note, holds in notes.items() if holds],
        "rows": entries,
    }


def _place(multiple: float, published: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return the measured multiple of T beside which a published one stands: each the other's nearest."""

    def nearest(of: float, among: Sequence[float]) -> float:
        return min(among, key=lambda one: abs(math.log(one / of)))

    place = nearest(multiple, measured) if measured else math.inf
    near = abs(math.log(place / multiple)) <= NEAR
    return place if near and nearest(place, published) == multiple else None


def show_against(found: dict[str, Any], format: str, stream: TextIO) -> None:
    """Print to a stream. Raises UserError for a format that is not in FORMATS."""
    if format not in FORMATS:
        raise UserError("--format", format, "no such format with --against", allowed=FORMATS)
    if format == "json":
        text = json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=2, allow_nan=False) + "\n"
    elif format == "markdown":
        text = markdown([_report(found)])
    else:
        text = terminal([_report(found)], width_of(stream), color_of(stream))
    write(text, stream)


def _report(found: dict[str, Any]) -> Report:
    """Return both sides' settings and a line for each published number at a length that was measured."""
    theirs, ours = found["published"], found["measured"]
    shown = [row for row in found["rows"] if row["multiple"] is not None]
    size = " to ".join(dict.fromkeys(map(millions, ours["parameters"] or [])))
    hidden = len(found["rows"]) - len(shown)
    notes = [
        *found["notes"],
        *[f"{hidden} more published numbers, at lengths that were not measured"] * bool(hidden),
        f"published: {theirs['paper']} (arXiv {theirs['arxiv'] or 'none'}), {theirs['parameters']} "
        f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}",
        f"measured: {size} parameters, {as_text(ours['corpus'])}, {ours['protocol']}, nats per token, "
        f"T = {as_text(ours['context_length'])}, {millions(ours['tokens'])} tokens, "
        f"seeds {', '.join(map(str, ours['seeds']))}",
        "change: against T, in nats per token, ± SD over seeds. Corpus, model, "
        "tokenizer and length differ: compare its direction, not its size",
    ]
    table = Table(HEADS, [[CellText(text) for text in _texts(row)] for row in shown])
    return Report([f"{found['table']} beside these runs"], "", [table], notes, gap=True)


def _texts(row: dict[str, Any]) -> list[str]:
    """Return the cells of a line; `-` where nobody measured, empty where there is nothing to say."""
    changes = [row[key] for key in ("published_change", "measured_change", "difference")]
    published, measured, difference = ("" if one is None else printed_change(one, "nats") for one in changes)
    if row["measured_spread"] is not None:
        measured += f"±{printed(row['measured_spread'], 'nats')}"
    mean = "-" if row["measured"] is None else printed(row["measured"], "nats")
    length = f"{row['multiple']:.3g}x = {row['published_length']}"
    head = [row["encoding"], str(row["train_length"]), length, f"{row['published']:g}"]
    return [*head, published, mean, measured, difference]
