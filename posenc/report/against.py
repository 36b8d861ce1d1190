"""Write a comparison beside a published table."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from posenc.core.errors import UserError
from posenc.report.captions import millions
from posenc.report.data import csv_text
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import color_of, markdown, terminal, unicode_of, width_of, write
from posenc.results.against import FLAT, Block, Check, Entry, PaperComparison
from posenc.results.schema import SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

FORMATS = ("table", "markdown", "csv", "json")
HEADS = ["length there", "published", "change", "measured", "change"]
OUTCOMES = ("pass", "fail", "cannot tell")  # in the order they are printed
ALIKE = 1.02  # multiples of T that differ by less are printed as one


def show_against(found: PaperComparison, format: str, stream: TextIO) -> None:
    """Print to a stream. Raises UserError for a format that is not in FORMATS."""
    match format:
        case "table":
            shown = [report_of(found)]
            text = terminal(shown, width_of(stream), color_of(stream), unicode_of(stream))
        case "markdown":
            text = markdown([report_of(found)], unicode_of(stream))
        case "csv":
            text = _csv(found)
        case "json":
            document = {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(found)}
            text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        case _:
            raise UserError("--format", format, "no such format with --against", allowed=FORMATS)
    write(text, stream)


def report_of(found: PaperComparison) -> Report:
    """Return both sides' settings, a table for each training length with its checks, and the counts."""
    counts = Counter[str](check.outcome for check in found.checks)
    return Report(
        titles=_settings(found),
        answer="directions: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES),
        tables=[_table(block) for block in found.blocks],
        notes=[
            *found.notes,
            "directions are compared, never sizes: corpus, model, tokenizer and length differ",
            "changes (against 1x) and differences are in nats per token, of a perplexity its logarithm; "
            f"within {FLAT:.2f} is flat",
            "± and [] are 95% intervals; those of the orders at one length hold together (Bonferroni)",
        ],
    )


def _settings(found: PaperComparison) -> list[str]:
    """Return the settings of both sides, a line each."""
    theirs, ours = found.published, found.measured
    model, tokenizer = (
        as_text(ours[key].get("name") if isinstance(ours[key], dict) else ours[key])
        for key in ("model", "tokenizer")
    )
    arxiv = f" (arXiv {theirs['arxiv']})" if theirs["arxiv"] else ""
    size = " to ".join(dict.fromkeys(map(millions, ours["parameters"] or [])))
    stride = "" if ours["stride"] is None else f" stride={ours['stride']}"
    return [
        f"published: {found.table}, {theirs['paper']}{arxiv}, {theirs['parameters']} parameters, "
        f"{theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}",
        f"measured: model {model} ({size} parameters), {as_text(ours['corpus'])} ({as_text(ours['split'])}), "
        f"{ours['protocol']}{stride}, nats per token, tokenizer {tokenizer}, "
        f"T = {as_text(ours['context_length'])}, trained on {millions(ours['tokens'])} tokens, "
        f"seeds {', '.join(map(str, ours['seeds']))}",
    ]


def _table(block: Block) -> Table:
    rest = f"; {block.not_shown} more published numbers, at lengths between these" if block.not_shown else ""
    names = [entry.encoding for entry in block.entries]
    return Table(
        heads=[[head] for head in HEADS],
        names=["" if i and name == names[i - 1] else name for i, name in enumerate(names)],
        cells=[[CellText([text]) for text in _texts(entry)] for entry in block.entries],
        title=f"trained at {block.train_length} tokens there{rest}",
        notes=_checks(block.checks),
    )


def _texts(entry: Entry) -> list[str]:
    """Return the cells of a row; `-` where nobody measured, empty where there is nothing to say."""
    published, measured = (
        "" if change is None else printed_change(change, "nats")
        for change in (entry.published_change, entry.measured_change)
    )
    if measured and entry.measured_half is not None:
        measured += f"±{printed(entry.measured_half, 'nats')}"
    mean = "-" if entry.measured is None else printed(entry.measured, "nats")
    return [_length(entry), f"{entry.published:g}", published, mean, measured]


def _length(entry: Entry) -> str:
    """`2x = 1024`; where the paper's own multiple is another one `4x ~ 2512 (4.91x)`."""
    if max(entry.multiple, entry.published_multiple) < ALIKE * min(entry.multiple, entry.published_multiple):
        return f"{entry.multiple:.3g}x = {entry.published_length}"
    return f"{entry.multiple:.3g}x ~ {entry.published_length} ({entry.published_multiple:.3g}x)"


def _checks(checks: Sequence[Check]) -> list[tuple[str, str]]:
    """Return outcome and text of the checks, those of one reason together: passes, failures, the rest."""
    lines = []
    for outcome in OUTCOMES:
        by_reason: dict[str, list[str]] = {}
        for check in checks:
            if check.outcome == outcome:
                by_reason.setdefault(check.reason, []).append(check.what)
        lines += [(outcome, f"{'; '.join(whats)}: {reason}") for reason, whats in by_reason.items()]
    return lines


def _csv(found: PaperComparison) -> str:
    """Return a line for each number of both sides with its sign's check; reasons are in the JSON."""
    fields = [field.name for field in dataclasses.fields(Entry)]
    rows = [
        [found.table, block.train_length, *(getattr(entry, field) for field in fields)]
        for block in found.blocks
        for entry in block.entries
    ]
    return csv_text([["table", "train_length", *fields], *rows])
