"""Escape other people's text where it leaves for a format. Terminals get `core.names.visible`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

from posenc.core.errors import visible

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: "\\" + character for character in "&%$#_{}"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''"}
LATEX |= {"±": r"$\pm$", "×": r"$\times$", "−": "$-$"}
FORMULA = "=+-@＝＋－＠"  # what a spreadsheet takes for the beginning of a formula


def markdown(text: object) -> str:
    """Return one line that Markdown and its HTML leave as it is, also inside a pipe table."""
    return re.sub(r"([\\`*_{}\[\]<>|#~!$&])", r"\\\1", visible(text))


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as CSV with text that no spreadsheet takes for a formula; None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([_csv_field(value) if isinstance(value, str) else value for value in row])
    return out.getvalue()


def _csv_field(value: str) -> str:
    shown = visible(value)
    return f"'{shown}" if shown.strip() and shown.lstrip()[0] in FORMULA else shown


def latex(text: object) -> str:
    """Return what LaTeX prints as it is, in any font encoding: minus signs before numbers, no Unicode."""
    shown = re.sub(r"(?<![\w.)])-(?=\d)", "−", visible(text))
    out = [LATEX.get(character, character) for character in shown]
    return "".join(c if c.isascii() else f"[U+{ord(c):04X}]" for c in out).replace("--", "-{}-")
