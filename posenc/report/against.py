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
from posenc.report.papers import markdown
from posenc.report.tables import Report, table_of_rows
from posenc.report.terminal import has_color, terminal_text, terminal_width, write
from posenc.report.texts import count_text
from posenc.results.comparison import CompareRequest, Comparison, compare_runs, protocols_of
from posenc.results.load import Run
from posenc.results.plain import plain
from posenc.results.schema import HEADLINE, INFLATED, RECALL, SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

FORMATS = ("table", "markdown", "json")
HEADS = ["encoding", "T there", "length", "published", "change", "measured", "change", "difference"]
# The published length nearest to one of ours stands beside it up to this ratio: alibi-table2 goes from 3 to 5
# times 512 tokens, and 2512 is its length for our 4x. Each such pair is printed with both.
NEAR = math.log(1.25)
PROTOCOLS = (HEADLINE, "sliding", INFLATED)  # that score text in windows of a length, as the papers do
SHARES = "accuracy"  # the metric of a table that is put beside recall


@functools.cache
def published() -> tuple[dict[str, Any], ...]:
    """Return every published number, in the order of the file, with `number`: nats per token, or a share."""
    text = files("posenc.results").joinpath("published.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    for row in rows:
        row |= {"train_length": int(row["train_length"]), "eval_length": int(row["eval_length"])}
        row |= {"value": float(row["value"]), "multiple": row["eval_length"] / row["train_length"]}
        row["number"] = math.log(row["value"]) if row["metric"] == "ppl" else row["value"]
    return tuple(rows)


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(dict.fromkeys(row["table"] for row in published()))


def against(runs: Sequence[Run], table: str) -> dict[str, Any]:
    """Put the runs beside a published table, by the protocol that comes nearest to the paper's.

    Where no run was measured by that one, by the next of PROTOCOLS; accuracies are put beside recall. Of the
    runs that can share a ranking, the most; a row with options of its own is not the paper's. Return both
    sides' settings, notes, and `rows`: numbers and changes in nats per token or shares, null where one side
    has none. Raises UserError.
    """
    rows = [row for row in published() if row["table"] == table]
    if not rows:
        raise UserError("--against", table, "there is no such table", allowed=tables())
    shares, there, theirs = rows[0]["metric"] == SHARES, protocols_of(runs), rows[0]["protocol"]
    if shares and RECALL not in there:
        hint = "posenc train experiment=recall"
        raise UserError("--against", table, "no run was asked to recall", hint=hint)
    nearest = RECALL if shares else next((name for name in PROTOCOLS if theirs.startswith(name)), HEADLINE)
    protocol = next((name for name in (nearest, *PROTOCOLS) if name in there), HEADLINE)
    comparison, *others = compare_runs(runs, CompareRequest(protocol))
    cells, known = _measured(comparison), {row["encoding"] for row in rows}
    missing = sorted(known - {label for label, _ in cells})
    blind = {row.label for row in comparison.rows if row.recall and row.recall.learned is False}
    weak = sorted(known & blind) if shares else []
    notes = {
        f"protocols differ: {theirs} there, {protocol} here": not theirs.startswith(protocol),
        f"published and not measured: {', '.join(missing)}": bool(missing),
        f"did not learn to recall within T, so without a change: {', '.join(weak)}": bool(weak),
        f"not compared: {len(others)} more tables of runs with other settings": bool(others),
    }
    measured = [column.multiple for column in comparison.columns]
    bases = {(row["encoding"], row["train_length"]): row for row in rows if row["multiple"] == 1}
    entries = []
    for row in sorted(rows, key=lambda one: (one["train_length"], one["encoding"], one["eval_length"])):
        own = [one["multiple"] for one in rows if one["train_length"] == row["train_length"]]
        multiple = _place(row["multiple"], own, measured)
        base = bases.get((row["encoding"], row["train_length"]), row)
        change = None if base is row else row["number"] - base["number"]
        mean, ours, spread = cells.get((row["encoding"], multiple or 0), (None, None, None))
        if multiple == 1:
            ours = spread = None
        entry = {key: row[key] for key in ("encoding", "train_length")}
        entry |= {"published_length": row["eval_length"], "published": row["value"]}
        entry |= {"published_change": change, "multiple": multiple}
        entry |= {"measured": mean, "measured_change": ours, "measured_spread": spread}
        entry["difference"] = None if change is None or ours is None else ours - change
        entries.append(entry)
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    return {
        "table": table,
        "published": {key: " | ".join(dict.fromkeys(row[key] for row in rows)) for key in keys},
        "measured": plain(comparison.header),
        "notes": [note for note, holds in notes.items() if holds],
        "rows": entries,
    }


def _measured(comparison: Comparison) -> dict[tuple[str, float], tuple[float | None, ...]]:
    """Return mean, change from T and its spread by label and multiple; of recall at the farthest distance."""
    found: dict[tuple[str, float], tuple[float | None, ...]] = {}
    for row in comparison.rows:
        label, own = row.label, row.recall
        if comparison.header.protocol != RECALL:
            found |= {(label, one.multiple): (one.mean, one.change, one.change_spread) for one in row.cells}
        elif own and own.within:
            for one in filter(None, [own.within, *own.beyond]):
                change = None if own.learned is False else one.accuracy - own.within.accuracy
                found[label, one.multiple] = (one.accuracy, change, None)
    return found


def _place(multiple: float, published: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return the measured multiple of T beside which a published one stands: each the other's nearest."""

    def nearest(of: float, among: Sequence[float]) -> float:
        return min(among, key=lambda one: abs(math.log(one / of)), default=math.inf)

    place = nearest(multiple, measured)
    both = nearest(place, published) == multiple if measured else False
    return place if both and abs(math.log(place / multiple)) <= NEAR else None


def show_against(found: dict[str, Any], format: str, stream: TextIO) -> None:
    """Print to a stream. Raises UserError for a format that is not in FORMATS."""
    if format not in FORMATS:
        raise UserError("--format", format, "no such format with --against", allowed=FORMATS)
    if format == "json":
        text = json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=2, allow_nan=False) + "\n"
    elif format == "markdown":
        text = markdown([_report(found)])
    else:
        text = terminal_text([_report(found)], terminal_width(), has_color(stream))
    write(text, stream)


def _report(found: dict[str, Any]) -> Report:
    """Return both sides' settings and a line for each published number at a length that was measured."""
    theirs, ours = found["published"], found["measured"]
    shown = [row for row in found["rows"] if row["multiple"] is not None]
    size = " to ".join(dict.fromkeys(map(count_text, ours["parameters"] or [])))
    hidden = len(found["rows"]) - len(shown)
    unit = "shares found" if theirs["metric"] == SHARES else "nats per token"
    notes = [
        *found["notes"],
        *[f"{hidden} more published numbers, at lengths that were not measured"] * bool(hidden),
        f"published: {theirs['paper']} (arXiv {theirs['arxiv'] or 'none'}), {theirs['parameters']} "
        f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}",
        f"measured: {size} parameters, {as_text(ours['corpus'])}, {ours['protocol']}, {unit}, "
        f"T = {as_text(ours['context_length'])}, {count_text(ours['tokens'])} tokens, "
        f"seeds {', '.join(map(str, ours['seeds']))}",
        f"change: against T, in {unit}, ± SD over seeds. Corpus, model, "
        "tokenizer and length differ: compare its direction, not its size",
    ]
    table = table_of_rows(HEADS, [_texts(row) for row in shown])
    return Report([f"{found['table']} beside these runs"], "", [table], notes, has_gap=True)


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
