"""Write a comparison beside a published table."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TextIO

from posenc.core.errors import UserError
from posenc.report.captions import millions
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import color_of, markdown, terminal, width_of, write
from posenc.results.against import FLAT, Block, Entry, PaperComparison
from posenc.results.schema import SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

FORMATS = ("table", "markdown", "json")
HEADS = ["encoding", "length there", "published", "change", "measured", "change"]
OUTCOMES = ("pass", "fail", "cannot tell")  # in the order they are printed


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
    """Return the counts, both sides' settings, a table for each training length, and the checks."""
    counts = Counter[str](check.outcome for check in found.checks)
    checks: dict[tuple[str, str], list[str]] = {}  # those of one reason together
    for check in sorted(found.checks, key=lambda one: OUTCOMES.index(one.outcome)):
        checks.setdefault((check.outcome, check.reason), []).append(check.what)
    theirs, ours = found.published, found.measured
    size = " to ".join(dict.fromkeys(map(millions, ours["parameters"] or [])))
    return Report(
        facts=[f"directions of {found.table}", *(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)],
        answer="",
        tables=[_table(block) for block in found.blocks],
        notes=[
            *(f"{outcome}: {'; '.join(whats)}: {reason}" for (outcome, reason), whats in checks.items()),
            *found.notes,
            f"published: {theirs['paper']} (arXiv {theirs['arxiv'] or 'none'}), {theirs['parameters']} "
            f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}",
            f"measured: {size} parameters, {as_text(ours['corpus'])}, {ours['protocol']}, nats per token, "
            f"T = {as_text(ours['context_length'])}, {millions(ours['tokens'])} tokens, "
            f"seeds {', '.join(map(str, ours['seeds']))}",
            "directions are compared, never sizes: corpus, model, tokenizer and length differ",
            f"changes against 1x in nats per token (of a perplexity its logarithm); flat: below {FLAT:.2f}",
        ],
        gap=True,
    )


def _table(block: Block) -> Table:
    more = f"; {block.not_shown} more published numbers, at lengths between these" if block.not_shown else ""
    rows = [[CellText(text) for text in (entry.encoding, *_texts(entry))] for entry in block.entries]
    return Table(HEADS, rows, f"trained at {block.train_length} tokens there{more}")


def _texts(entry: Entry) -> list[str]:
    """Return the cells of a row; `-` where nobody measured, empty where there is nothing to say."""
    published, measured = (
        "" if change is None else printed_change(change, "nats")
        for change in (entry.published_change, entry.measured_change)
    )
    if measured and entry.measured_half is not None:
        measured += f"±{printed(entry.measured_half, 'nats')}"
    mean = "-" if entry.measured is None else printed(entry.measured, "nats")
    return [
        f"{entry.multiple:.3g}x = {entry.published_length}",
        f"{entry.published:g}",
        published,
        mean,
        measured,
    ]
