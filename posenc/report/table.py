"""Printing comparisons: one function a format, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TextIO

from posenc.core.errors import UserError, visible
from posenc.report.data import csv_lines, json_document
from posenc.report.latex import latex
from posenc.report.markdown import markdown
from posenc.report.terminal import ASCII, terminal
from posenc.results.comparison import Comparison, compare, metric_for, tables_of
from posenc.results.load import Run
from posenc.results.schema import Metric

FORMATS: dict[str, Callable[[Sequence[Comparison], int, bool, bool], str]] = {
    "table": terminal,
    "markdown": markdown,
    "csv": csv_lines,
    "latex": latex,
    "json": json_document,
}
PIPED_WIDTH = 200  # a pipe has no width: wide enough for eight lengths in one block


def render(comparison: Comparison, format: str, width: int, color: bool, unicode: bool = True) -> str:
    """A comparison as text that ends with a newline. `width` in terminal columns; only the table uses it.

    Without `unicode` our own signs are ASCII (`+/-`). Raises UserError for a format that is not in FORMATS.
    """
    return _renderer(format)([comparison], width, color, unicode)


def render_run(run: Run, format: str, metric: Metric, width: int, color: bool, unicode: bool = True) -> str:
    """One run's own tables, by each protocol of `tables_of`. Raises as render and compare."""
    comparisons = [compare([run], name, metric_for([run], name, metric), False) for name in tables_of([run])]
    return _renderer(format)(comparisons, width, color, unicode)


def show(comparisons: Sequence[Comparison], format: str, stream: TextIO) -> None:
    """Print comparisons to a stream, as wide, coloured and plain as that stream can show."""
    text = _renderer(format)(comparisons, width_of(stream), color_of(stream), unicode_of(stream))
    write(text, stream)


def show_run(run: Run, format: str, metric: Metric, stream: TextIO) -> None:
    """Print one run's own table to a stream."""
    text = render_run(run, format, metric, width_of(stream), color_of(stream), unicode_of(stream))
    write(text, stream)


def write(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks become escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


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
    """Whether styles belong on this stream: a capable terminal, or FORCE_COLOR. NO_COLOR leaves bold."""
    from rich.console import Console

    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


def unicode_of(stream: TextIO) -> bool:
    """Whether the stream's encoding has the signs that a table uses."""
    try:
        "".join(ASCII).encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _renderer(format: str) -> Callable[[Sequence[Comparison], int, bool, bool], str]:
    if format not in FORMATS:
        raise UserError("--format", visible(format), "no such format", allowed=list(FORMATS))
    return FORMATS[format]
