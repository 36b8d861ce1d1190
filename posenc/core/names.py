"""Text that came from somebody else, made safe to print or to name a file with."""

from __future__ import annotations

import re

DEAF = "a library that hears no signal"  # a thread that may outlive the command (corpus.waiting)


def visible(text: object) -> str:
    """One line: unprintable characters (control, direction) become escapes (`\\n`, `\\x1b`)."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def safe_name(text: str) -> str:
    """A part of a file name: `[A-Za-z0-9._+-]` only, no leading dot, at most 60 characters, never empty."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", text).lstrip(".-")[:60] or "_"
