"""Names of other people as plain text in each format."""

from __future__ import annotations

import re

from posenc.results.names import visible


def markdown(text: object) -> str:
    """Text that Markdown and its HTML leave as it is, on one line, also inside a pipe table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!$&])", r"\\\1", visible(text))


def csv_text(text: object) -> str:
    """Text that no spreadsheet takes for a formula: a quote in front of `= + - @` and the like."""
    shown = visible(text)
    return (
        f"'{shown}"
        if shown.lstrip()[:1] in ("=", "+", "-", "@", "＝", "＋", "－", "＠") and shown.strip()
        else shown
    )
