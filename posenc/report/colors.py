"""What an encoding looks like: one colour, dash and marker in every plot, page and dashboard."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from posenc.core.paths import choice_files

# Hues of Okabe and Ito, moved apart in lightness until the nearest two differ by more under simulated colour
# blindness than theirs, and until the palest reaches a contrast of 2.8 to white (their yellow has 1.3).
ON_WHITE = ("#1F4FB5", "#A02E08", "#3A8560", "#DA62B0", "#B8942A", "#2B9DF4", "#66106A", "#1A1A1A")
ON_DARK = ("#1F7AE0", "#D95A10", "#75EA8E", "#F7B4F5", "#C9A300", "#7C9AD3", "#966087", "#F2F2F2")
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2))  # on and off in line widths; () is solid
VARIANT_DASHES: tuple[tuple[float, ...], ...] = (
    (4, 1.5),
    (1.2, 1.2),
    (6, 1.5, 1.2, 1.5),
    (6, 1.5, 1.2, 1.5, 1.2, 1.5),
    (2.5, 1, 2.5, 3),
)
MARKERS = "os^DvPX<>*"
# Of the salts from 0 on the first with which the encodings of the comparison that the README shows have
# distinct colours and markers and solid lines, no two of the first 29 encodings look alike, and no two
# extensions look alike on one encoding.
SALT = 6653336


@dataclass(frozen=True)
class Style:
    """How a line is drawn. Colours are `#RRGGBB`."""

    color: str  # on white
    dark: str  # on a dark background
    dash: tuple[float, ...]  # on and off in line widths; () is solid
    marker: str  # matplotlib's letter for it


def style_of(label: str) -> Style:
    """The style of a row by its label, a function of its text only; what another package adds changes none.

    The encoding's name gives colour, marker and dash. What follows it (a test-time extension, settings,
    options) keeps the colour and gives marker and dash; the policy beyond T gives nothing.
    """
    name, variant = _split(label)
    return _variant(name, variant) if variant else _slot(name)


def styles_of(labels: Iterable[str]) -> dict[str, Style]:
    """The styles of rows that stand together: as `style_of`; of two that are alike one gets another."""
    given = list(dict.fromkeys(labels))
    parts = {label: _split(label) for label in given}
    ours = _names("encoding")
    found: dict[str, Style] = {}
    taken: set[Style] = set()
    for label in sorted(given, key=lambda one: (bool(parts[one][1]), parts[one][0] not in ours, one)):
        style, attempt = style_of(label), 0
        while style in taken and attempt < 2 * len(VARIANT_DASHES) * len(MARKERS):
            style, attempt = _variant(parts[label][0], f"{label} {attempt}"), attempt + 1
        found[label] = style
        taken.add(style)
    return {label: found[label] for label in given}


def _split(label: str) -> tuple[str, str]:
    """The encoding's name, and what sets this row apart from the encoding as it is."""
    head, _, rest = re.sub(r" \(beyond: [^()]*\)", "", label).partition(" ")
    name, plus, last = head.rpartition("+")
    encodings, extensions = _names("encoding"), _names("extend")
    if plus and (last in extensions or (last not in encodings and name.split("+")[0] in encodings)):
        return name, f"+{last} {rest}".strip()
    return head, rest


@functools.cache
def _names(group: str) -> frozenset[str]:
    """What there is a YAML of."""
    return frozenset(choice_files(group))


def _slot(name: str) -> Style:
    at, marker, dash = _digits(name, len(ON_WHITE), len(MARKERS), len(DASHES))
    return Style(ON_WHITE[at], ON_DARK[at], DASHES[dash], MARKERS[marker])


def _variant(name: str, variant: str) -> Style:
    (at,) = _digits(name, len(ON_WHITE))
    dash, marker = _digits(variant, len(VARIANT_DASHES), len(MARKERS))
    return Style(ON_WHITE[at], ON_DARK[at], VARIANT_DASHES[dash], MARKERS[marker])


def _digits(text: str, *bases: int) -> list[int]:
    """Numbers below each of the bases, from a hash of the text."""
    digest = hashlib.sha256(f"{SALT} {text}".encode("utf-8", "backslashreplace")).digest()
    number, digits = int.from_bytes(digest[:8], "big"), []
    for base in bases:
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits
