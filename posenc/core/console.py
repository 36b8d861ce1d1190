"""Write to the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TextIO

PIPED_WIDTH = 100  # columns: a pipe has no width


def write(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks become escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def terminal_width() -> int:
    """Return the columns to print for: COLUMNS, the terminal's own width, or 100 for a pipe."""
    return shutil.get_terminal_size((PIPED_WIDTH, 0)).columns


def wrapped(text: str) -> str:
    """Return text with its long lines broken between words for a terminal on stderr; a pipe gets it as it is.

    Paths and lists without spaces stay whole, so that they can be copied.
    """
    if not sys.stderr.isatty():
        return text
    return "\n".join(map(_wrapped_line, text.split("\n")))


def _wrapped_line(line: str) -> str:
    """Return a line broken for the terminal, with what follows indented below its beginning."""
    indent = line[: len(line) - len(line.lstrip())] + "  "
    return textwrap.fill(
        line,
        terminal_width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def say(text: str) -> None:
    """Print one plain line on stderr; a terminal that is gone, or `2>&1 | head`, must not end a run."""
    with suppress(OSError):
        # in one piece, since several threads may print
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
