"""Printing comparisons: one function a format, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from posenc.errors import UserError
from posenc.report.data import csv_lines, json_document
from posenc.report.markdown import markdown
from posenc.report.terminal import terminal
from posenc.results.comparison import Comparison, compare, protocols_of
from posenc.results.load import Run
from posenc.results.names import visible
from posenc.results.records import Metric

FORMATS: dict[str, Callable[[Sequence[Comparison], int, bool], str]] = {
    "table": terminal,
    "markdown": markdown,
    "csv": csv_lines,
    "json": json_document,
}
PIPED_WIDTH = 200  # a pipe has no width: wide enough for eight lengths in one block
PLAIN = {"±": "+/-", "─": "-"}


def render(comparison: Comparison, format: str, width: int, color: bool) -> str:
    """A comparison as text that ends with a newline. `width` in terminal columns; only the table uses it.

    Raises UserError for a format that is not in FORMATS.
    """
    return _renderer(format)([comparison], width, color)


def render_run(run: Run, format: str, metric: Metric, width: int, color: bool) -> str:
    """One run's own table: each protocol that it has records of. Raises as render and compare."""
    comparisons = [compare([run], name, metric, False) for name in protocols_of([run]) or ["fixed-target"]]
    return _renderer(format)(comparisons, width, color)


def show(text: str, stream: TextIO) -> None:
    """Write text to a stream; where its encoding lacks a character, a plain one (`+/-`) or an escape."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = _plain(text).encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)


def width_of(stream: TextIO) -> int:
    """Columns to print for: COLUMNS, the terminal's own width, or 200 for a pipe."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH
    except (OSError, ValueError, AttributeError):
        return PIPED_WIDTH


def color_of(stream: TextIO) -> bool:
    """Whether styles belong on this stream: a terminal that can, or FORCE_COLOR. Rich drops colours for NO_COLOR."""
    from rich.console import Console

    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


def _renderer(format: str) -> Callable[[Sequence[Comparison], int, bool], str]:
    if format not in FORMATS:
        raise UserError("--format", visible(format), "no such format", allowed=list(FORMATS))
    return FORMATS[format]


def _plain(text: str) -> str:
    for character, replacement in PLAIN.items():
        text = text.replace(character, replacement)
    return text
