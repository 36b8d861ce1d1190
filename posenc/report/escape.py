"""Names of other people as plain text in each format."""

from __future__ import annotations

import re

from posenc.core.errors import visible

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: "\\" + character for character in "&%$#_{}"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "−": "$-$"}


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


def latex(text: object) -> str:
    """Text that LaTeX prints as it is, in any font encoding: minus signs before numbers, no Unicode."""
    shown = re.sub(r"(?<![\w.)])-(?=\d)", "−", visible(text))
    out = [LATEX.get(character, character) for character in shown]
    return "".join(c if c.isascii() else f"[U+{ord(c):04X}]" for c in out).replace("--", "-{}-")
