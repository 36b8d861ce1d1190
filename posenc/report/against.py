"""Printing a comparison beside a published table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.errors import UserError
from posenc.report.escape import csv_text
from posenc.report.escape import markdown as safe
from posenc.report.table import color_of, unicode_of, width_of, write
from posenc.report.terminal import plain
from posenc.report.words import millions
from posenc.results.against import Against, Block, Entry
from posenc.results.names import visible
from posenc.results.numbers import printed, printed_change
from posenc.results.records import SCHEMA_VERSION
from posenc.results.settings import as_text

HEADS = ["", "length", "published", "change", "measured", "change"]


def show_against(found: Against, format: str, stream: TextIO) -> None:
    """Print to a stream, as wide, coloured and plain as it can show. Raises UserError for the format."""
    if format not in FORMATS:
        raise UserError("--format", visible(format), "no such format with --against", allowed=list(FORMATS))
    text = FORMATS[format](found, width_of(stream), color_of(stream))
    write(text if unicode_of(stream) else plain(text), stream)


def _terminal(found: Against, width: int, color: bool) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    with console.capture() as capture:
        for line in titles(found):
            console.print(Text(line, style="bold"), overflow="fold")
        for block in found.blocks:
            console.print()
            console.print(Text(_block_title(block)), overflow="fold")
            table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
            for i, head in enumerate(HEADS):
                table.add_column(head, justify="left" if i == 0 else "right", overflow="fold")
            for cells in entry_cells(block.entries):
                table.add_row(*(Text(cell) for cell in cells))
            console.print(table)
            for check in block.checks:
                style = {"pass": "green", "fail": "bold red"}.get(check.outcome, "dim")
                said = Text.assemble(
                    (f"{check.outcome:<11} ", style), visible(f"{check.what}: {check.reason}")
                )
                console.print(said, overflow="fold")
        console.print()
        for note in [summary(found), *found.notes]:
            console.print(Text(visible(note), style="dim"), overflow="fold")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _markdown(found: Against, width: int, color: bool) -> str:
    lines = [f"**{safe(line)}**  " for line in titles(found)]
    for block in found.blocks:
        lines += ["", safe(_block_title(block)), "", _pipe(["encoding", *HEADS[1:]])]
        lines.append(_pipe(["---", *["---:"] * (len(HEADS) - 1)]))
        lines += [_pipe([safe(cell) for cell in cells]) for cells in entry_cells(block.entries)]
        lines.append("")
        lines += [f"- {c.outcome}: {safe(c.what)} ({safe(c.reason)})" for c in block.checks]
    return "\n".join([*lines, "", *(f"- {safe(note)}" for note in [summary(found), *found.notes])]) + "\n"


def _csv(found: Against, width: int, color: bool) -> str:
    """A line for each number of both sides; the checks stand in the JSON document."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = [field.name for field in dataclasses.fields(Entry)]
    writer.writerow(["table", "train_length", *fields])
    for block in found.blocks:
        for entry in block.entries:
            values = [found.table, block.train_length, *(getattr(entry, field) for field in fields)]
            writer.writerow([csv_text(v) if isinstance(v, str) else v for v in values])
    return out.getvalue()


def _json(found: Against, width: int, color: bool) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(found)}, indent=2) + "\n"


FORMATS: dict[str, Callable[[Against, int, bool], str]] = {
    "table": _terminal,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}


def titles(found: Against) -> list[str]:
    """The settings of both sides, a line each."""
    theirs, ours = found.published, found.measured
    arxiv = f" (arXiv {theirs['arxiv']})" if theirs["arxiv"] else ""
    named = {
        key: ours[key].get("name") if isinstance(ours[key], dict) else ours[key]
        for key in ("model", "tokenizer")
    }
    counts = ours["parameters"] or []
    size = " to ".join(dict.fromkeys(millions(count) for count in counts))
    seeds = ", ".join(map(str, ours["seeds"]))
    return [
        visible(
            f"published: {found.table}, {theirs['paper']}{arxiv}, {theirs['parameters']} "
            f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}"
        ),
        visible(
            f"measured: model {as_text(named['model'])} ({size} parameters), {as_text(ours['corpus'])} "
            f"({as_text(ours['split'])}), {ours['protocol']}, nats per token, tokenizer "
            f"{as_text(named['tokenizer'])}, T = {as_text(ours['context_length'])}, trained on "
            f"{millions(ours['tokens'])} tokens, seeds {seeds}"
        ),
    ]


def entry_cells(entries: Sequence[Entry]) -> list[list[str]]:
    """Rows of text; an empty cell where a side has nothing."""
    rows, before = [], None
    for entry in entries:
        change = "" if entry.measured_change is None else printed_change(entry.measured_change, "nats")
        half = "" if entry.measured_half is None else f"±{printed(entry.measured_half, 'nats')}"
        rows.append(
            [
                "" if entry.encoding == before else visible(entry.encoding),
                f"{entry.multiple:g}x = {entry.published_length}",
                "" if entry.published is None else f"{entry.published:g}",
                "" if entry.published_change is None else printed_change(entry.published_change, "nats"),
                "-" if entry.measured is None else printed(entry.measured, "nats"),
                change + half,
            ]
        )
        before = entry.encoding
    return rows


def summary(found: Against) -> str:
    """How many directions agree."""
    counts = Counter(check.outcome for check in found.checks)
    return (
        f"directions: {counts['pass']} pass, {counts['fail']} fail, {counts['cannot tell']} cannot tell; "
        "changes are in nats per token against 1x (of a perplexity: its logarithm), ± half the 95% interval"
    )


def _block_title(block: Block) -> str:
    rest = f"; {block.not_shown} published numbers at other lengths" if block.not_shown else ""
    return f"trained at {block.train_length} tokens there{rest}"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
