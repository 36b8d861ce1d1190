"""Print a published table beside a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TextIO

from posenc.core.console import terminal_width, write
from posenc.core.errors import UserError
from posenc.report.papers import markdown
from posenc.report.tables import Report, table_of_rows
from posenc.report.terminal import has_color, terminal_text
from posenc.report.texts import count_text
from posenc.results.numbers import as_text, printed, printed_change
from posenc.results.published import Against, AgainstLine
from posenc.settings.tree import SCHEMA_VERSION

AGAINST_FORMATS = ("table", "markdown", "json")
# The T of a paper stands in the lengths: 1x is T. A column of it would make the table wider than a terminal.
HEADS = ("encoding", "length there", "published", "change", "measured", "change", "difference")


def show_against(against: Against, format: str, stream: TextIO) -> None:
    """Print to a stream. Raises UserError for a format that is not in AGAINST_FORMATS."""
    if format not in AGAINST_FORMATS:
        raise UserError("--format", format, "no such format with --against", allowed=AGAINST_FORMATS)
    if format == "json":
        document = {"schema_version": SCHEMA_VERSION, **against.to_dict()}
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    elif format == "markdown":
        text = markdown([against_report(against)])
    else:
        text = terminal_text([against_report(against)], terminal_width(), has_color(stream))
    write(text, stream)


def against_report(against: Against) -> Report:
    """Return a line for each published number at a measured length, and the settings of both sides."""
    # A paper prints lengths that nobody here measured. Their lines would be half empty, so that a note counts
    # them.
    lines = [line for line in against.rows if line.multiple is not None]
    n_hidden = len(against.rows) - len(lines)
    notes = list(against.notes)
    if n_hidden:
        notes.append(f"{n_hidden} more published numbers, at lengths that were not measured")
    unit = "shares found" if against.is_accuracy else "nats per token"
    notes += [_published_note(against), _measured_note(against, unit)]
    notes.append(
        f"change: against T, in {unit}, ± SD over seeds. Corpus, model, tokenizer and length differ: compare "
        "its direction, not its size"
    )
    table = replace(table_of_rows(HEADS, [_texts(line) for line in lines]), n_keys=2)
    return Report([f"{against.table} beside these runs"], "", [table], notes, has_gap=True)


def _published_note(against: Against) -> str:
    source = against.published
    return (
        f"published: {source['paper']} (arXiv {source['arxiv'] or 'none'}), {source['parameters']} "
        f"parameters, {source['corpus']}, {source['protocol']}, {source['metric']}"
    )


def _measured_note(against: Against, unit: str) -> str:
    header = against.measured
    # Fewest and most, which are the same text if all models are alike.
    sizes = dict.fromkeys(count_text(count) for count in header.parameters or ())
    parts = [
        f"{' to '.join(sizes)} parameters",
        as_text(header.corpus),
        header.protocol,
        unit,
        f"T = {as_text(header.context_length)}",
        f"{count_text(header.tokens)} tokens",
        f"seeds {', '.join(str(seed) for seed in header.seeds)}",
    ]
    return f"measured: {', '.join(parts)}"


def _texts(line: AgainstLine) -> list[str]:
    """Return the cells of a line; `-` for a loss that was not measured, empty for an unknown change."""
    measured_change = _change_text(line.measured_change)
    if line.measured_spread is not None:
        measured_change += f"±{printed(line.measured_spread, 'nats')}"
    return [
        line.encoding,
        f"{line.multiple:.3g}x = {line.published_length}",
        f"{line.published:g}",
        _change_text(line.published_change),
        "-" if line.measured is None else printed(line.measured, "nats"),
        measured_change,
        _change_text(line.difference),
    ]


def _change_text(change: float | None) -> str:
    return "" if change is None else printed_change(change, "nats")
