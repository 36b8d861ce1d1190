"""Printing a comparison beside a published table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.core.errors import UserError, visible
from posenc.report.escape import csv_text
from posenc.report.escape import markdown as safe
from posenc.report.table import color_of, unicode_of, width_of, write
from posenc.report.terminal import plain
from posenc.report.words import millions
from posenc.results.against import FLAT, Block, Check, Entry, PaperComparison
from posenc.results.schema import SCHEMA_VERSION, printed, printed_change
from posenc.results.settings import as_text

HEADS = ["", "length there", "published", "change", "measured", "change"]
STYLES = {"pass": "green", "fail": "bold red", "cannot tell": "dim"}  # and the order of the checks
ALIKE = 1.02  # multiples of T that differ by less are printed as one


def render_against(found: PaperComparison, format: str, width: int, color: bool, unicode: bool = True) -> str:
    """Text that ends with a newline; `width` in terminal columns, which only the table uses.

    Without `unicode` our own signs are ASCII (`+/-`). Raises UserError for a format that is not in FORMATS.
    """
    if format not in FORMATS:
        raise UserError("--format", visible(format), "no such format with --against", allowed=list(FORMATS))
    text = FORMATS[format](found, width, color)
    return text if unicode else plain(text)


def show_against(found: PaperComparison, format: str, stream: TextIO) -> None:
    """Print to a stream, as wide, coloured and plain as it can show. Raises as render_against."""
    write(render_against(found, format, width_of(stream), color_of(stream), unicode_of(stream)), stream)


def _terminal(found: PaperComparison, width: int, color: bool) -> str:
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
        for note in found.notes:
            console.print(Text(note, style="yellow"), overflow="fold")
        for block in found.blocks:
            console.print()
            console.print(Text(_block_title(block)), overflow="fold")
            console.print(_numbers(block))
            console.print(_checks(block))
        console.print()
        for line in summary(found):
            console.print(Text(line, style="dim"), overflow="fold")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _numbers(block: Block) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for i, head in enumerate(HEADS):
        table.add_column(head, justify="left" if i < 2 else "right", overflow="fold")
    for cells in entry_cells(block.entries):
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _checks(block: Block) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=max(map(len, STYLES)))
    table.add_column(overflow="fold")
    for outcome, text in check_lines(block.checks):
        table.add_row(Text(outcome, style=STYLES[outcome]), Text(text))
    return table


def _markdown(found: PaperComparison, width: int, color: bool) -> str:
    lines = [f"**{safe(line)}**  " for line in titles(found)]
    lines += ["", *(f"- {safe(note)}" for note in found.notes)] if found.notes else []
    for block in found.blocks:
        lines += ["", _block_title(block), "", _pipe(["encoding", *HEADS[1:]])]
        lines.append(_pipe(["---", "---", *["---:"] * (len(HEADS) - 2)]))
        lines += [_pipe([safe(cell) for cell in cells]) for cells in entry_cells(block.entries)]
        lines += ["", *(f"- {outcome}: {safe(text)}" for outcome, text in check_lines(block.checks))]
    return "\n".join([*lines, "", *(f"- {safe(line)}" for line in summary(found))]) + "\n"


def _csv(found: PaperComparison, width: int, color: bool) -> str:
    """A line for each number of both sides with its sign's check; reasons and orders are in the JSON."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = [field.name for field in dataclasses.fields(Entry)]
    writer.writerow(["table", "train_length", *fields])
    for block in found.blocks:
        for entry in block.entries:
            values = [found.table, block.train_length, *(getattr(entry, field) for field in fields)]
            writer.writerow([csv_text(v) if isinstance(v, str) else v for v in values])
    return out.getvalue()


def _json(found: PaperComparison, width: int, color: bool) -> str:
    return (
        json.dumps({"schema_version": SCHEMA_VERSION, **dataclasses.asdict(found)}, indent=2, allow_nan=False)
        + "\n"
    )


FORMATS: dict[str, Callable[[PaperComparison, int, bool], str]] = {
    "table": _terminal,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}


def titles(found: PaperComparison) -> list[str]:
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
    stride = "" if ours["stride"] is None else f" stride={ours['stride']}"
    return [
        visible(
            f"published: {found.table}, {theirs['paper']}{arxiv}, {theirs['parameters']} "
            f"parameters, {theirs['corpus']}, {theirs['protocol']}, {theirs['metric']}"
        ),
        visible(
            f"measured: model {as_text(named['model'])} ({size} parameters), {as_text(ours['corpus'])} "
            f"({as_text(ours['split'])}), {ours['protocol']}{stride}, nats per token, tokenizer "
            f"{as_text(named['tokenizer'])}, T = {as_text(ours['context_length'])}, trained on "
            f"{millions(ours['tokens'])} tokens, seeds {seeds}"
        ),
    ]


def entry_cells(entries: Sequence[Entry]) -> list[list[str]]:
    """Rows of text; `-` where nobody measured, an empty cell where there is nothing to say."""
    rows, before = [], None
    for entry in entries:
        change = "" if entry.measured_change is None else printed_change(entry.measured_change, "nats")
        half = "" if entry.measured_half is None else f"±{printed(entry.measured_half, 'nats')}"
        rows.append(
            [
                "" if entry.encoding == before else visible(entry.encoding),
                _length(entry),
                f"{entry.published:g}",
                "" if entry.published_change is None else printed_change(entry.published_change, "nats"),
                "-" if entry.measured is None else printed(entry.measured, "nats"),
                change + half if change else "",
            ]
        )
        before = entry.encoding
    return rows


def check_lines(checks: Sequence[Check]) -> Iterator[tuple[str, str]]:
    """Outcome and text of each check: passes, failures, then the rest, those of one reason in one line."""
    for outcome in STYLES:
        by_reason: dict[str, list[str]] = {}
        for check in checks:
            if check.outcome == outcome:
                by_reason.setdefault(check.reason, []).append(check.what)
        for reason, whats in by_reason.items():
            yield outcome, visible(f"{'; '.join(whats)}: {reason}")


def summary(found: PaperComparison) -> list[str]:
    """How many directions agree, and what the numbers are."""
    counts = Counter(check.outcome for check in found.checks)
    return [
        f"directions: {counts['pass']} pass, {counts['fail']} fail, {counts['cannot tell']} cannot tell",
        "directions are compared, never sizes: corpus, model, tokenizer and length differ",
        "changes (against 1x) and differences are in nats per token, of a perplexity its logarithm; "
        f"within {FLAT:.2f} is flat",
        "± and [] are 95% intervals; those of the orders at one length hold together (Bonferroni)",
    ]


def _length(entry: Entry) -> str:
    """`2x = 1024`; where the paper's own multiple is another one `4x ~ 2512 (4.91x)`."""
    if max(entry.multiple, entry.published_multiple) < ALIKE * min(entry.multiple, entry.published_multiple):
        return f"{entry.multiple:.3g}x = {entry.published_length}"
    return f"{entry.multiple:.3g}x ~ {entry.published_length} ({entry.published_multiple:.3g}x)"


def _block_title(block: Block) -> str:
    rest = f"; {block.not_shown} more published numbers, at lengths between these" if block.not_shown else ""
    return f"trained at {block.train_length} tokens there{rest}"


def _pipe(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
