"""Write a comparison beside a published table."""

from __future__ import annotations

import dataclasses
import json
from typing import TextIO

from posenc.core.errors import UserError
from posenc.report.captions import millions
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import color_of, markdown, terminal, width_of, write
from posenc.results.frame import Entry, PaperComparison
from posenc.results.schema import SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

FORMATS = ("table", "markdown", "json")
HEADS = ["encoding", "T there", "length", "published", "change", "measured", "change", "difference"]


def show_against(found: PaperComparison, format: str, stream: TextIO) -> None:
    """Print to a stream. Raises UserError for a format that is not in FORMATS."""
    match format:
        case "table":
            text = terminal([report_of(found)], width_of(stream), color_of(stream))
        case "markdown":
            text = markdown([report_of(found)])
        case "json":
            document = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(found)}
            text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        case _:
            raise UserError("--format", format, "no such format with --against", allowed=FORMATS)
    write(text, stream)


def report_of(found: PaperComparison) -> Report:
    """Return both sides' settings and a line for each published number at a length that was measured."""
    theirs, ours = found.published, found.measured
    shown = [row for row in found.rows if row.multiple is not None]
    size = " to ".join(dict.fromkeys(map(millions, ours["parameters"] or [])))
    hidden = len(found.rows) - len(shown)
    return Report(
        facts=[f"{found.table} beside these runs"],
        answer="",
        tables=[Table(HEADS, [[CellText(text) for text in _texts(row)] for row in shown])],
        notes=[
            *found.notes,
            *([f"{hidden} more published numbers, at lengths that were not measured"] if hidden else []),
            f"published: {theirs['paper']} (arXiv {theirs['arxiv'] or 'none'}), {theirs['parameters']} "
            f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}",
            f"measured: {size} parameters, {as_text(ours['corpus'])}, {ours['protocol']}, nats per token, "
            f"T = {as_text(ours['context_length'])}, {millions(ours['tokens'])} tokens, "
            f"seeds {', '.join(map(str, ours['seeds']))}",
            "change: against T, in nats per token, ± SD over seeds. Corpus, model, "
            "tokenizer and length differ: compare its direction, not its size",
        ],
        gap=True,
    )


def _texts(row: Entry) -> list[str]:
    """Return the cells of a line; `-` where nobody measured, empty where there is nothing to say."""
    changes = (row.published_change, row.measured_change, row.difference)
    published, measured, difference = ("" if one is None else printed_change(one, "nats") for one in changes)
    if row.measured_spread is not None:
        measured += f"±{printed(row.measured_spread, 'nats')}"
    mean = "-" if row.measured is None else printed(row.measured, "nats")
    length = f"{row.multiple:.3g}x = {row.published_length}"
    head = [row.encoding, str(row.train_length), length, f"{row.published:g}"]
    return [*head, published, mean, measured, difference]
