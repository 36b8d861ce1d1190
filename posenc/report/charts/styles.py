"""Choose the colour, dashes and marker of each row in a figure.

`styles.csv` has the colour and the marker of each built-in encoding, so that an encoding looks the same in
as many figures as possible: it differs only where two rows of a figure would look alike. An encoding
that it does not list gets its style from a hash of its name.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

# Hues of Okabe and Ito (2008), moved apart in lightness. Under simulated colour blindness the closest pair is
# farther apart than the closest pair of theirs. The palest has a contrast to white of 2.8; their yellow has
# 1.3.
COLORS = {  # name: (on white, on a dark background)
    "blue": ("#1F4FB5", "#1F7AE0"),
    "rust": ("#A02E08", "#D95A10"),
    "green": ("#3A8560", "#75EA8E"),
    "pink": ("#DA62B0", "#F7B4F5"),
    "ochre": ("#B8942A", "#C9A300"),
    "sky": ("#2B9DF4", "#7C9AD3"),
    "purple": ("#66106A", "#966087"),
    "black": ("#1A1A1A", "#F2F2F2"),
}
ON_WHITE = tuple(on_white for on_white, _ in COLORS.values())
MARKERS = {  # SVG paths in a square from -1 to 1
    "circle": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "square": "M-.85,-.85H.85V.85H-.85Z",
    "up": "M0,-1L1,.8H-1Z",
    "down": "M0,1L1,-.8H-1Z",
    "left": "M-1,0L.8,-1V1Z",
    "right": "M1,0L-.8,-1V1Z",
    "diamond": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
    "plus": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    "cross": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "star": "M0,-1.2L.3,-.4L1.15,-.37L.48,.15L.71,.97L0,.5L-.71,.97L-.48,.15L-1.15,-.37L-.3,-.4Z",
}
SOLID: tuple[float, ...] = ()
# On and off, in line widths. They are for extensions and other variants, and for rows of a figure that share
# their colour with another row.
DASHES: tuple[tuple[float, ...], ...] = (
    (4, 1.5),
    (1.2, 1.2),
    (6, 1.5, 1.2, 1.5),
    (6, 1.5, 1.2, 1.5, 1.2, 1.5),
    (2.5, 1, 2.5, 3),
)


@dataclass(frozen=True)
class Style:
    """How a row is drawn."""

    color: str  # a key of COLORS
    marker: str  # a key of MARKERS
    dash: tuple[float, ...] = SOLID

    @property
    def on_white(self) -> str:
        """Return the colour on white, `#RRGGBB`."""
        return COLORS[self.color][0]

    @property
    def on_dark(self) -> str:
        """Return the colour on a dark background, `#RRGGBB`."""
        return COLORS[self.color][1]


def style_of(label: str, encoding: str) -> Style:
    """Return the style of a row by its label alone, whatever other rows there are.

    A variant (an encoding with a test-time extension, other settings or options) has the colour of its
    encoding. Its dashes and its marker go by a hash of what varies, so that an extension looks alike on every
    encoding. The marker may happen to be that of the encoding; the dashes still differ.
    """
    listed_style = _listed_styles().get(encoding)
    style = listed_style or Style(_pick(COLORS, encoding, "color"), _pick(MARKERS, encoding, "marker"))
    variant = label.removeprefix(encoding).strip()
    if not variant:
        return style
    return replace(style, marker=_pick(MARKERS, variant, "marker"), dash=DASHES[_hash(variant) % len(DASHES)])


def styles_of(encodings: Mapping[str, str]) -> dict[str, Style]:
    """Return the styles of rows that are shown together, by label; `encodings` has the encoding of each.

    Up to eight rows each get their own colour. With more rows, every colour is shared by as few as possible,
    and those that share one differ in dashes and in markers as long as there are enough. If two rows would
    look alike, the one that comes first in `styles.csv` keeps its style, and a variant gives way to an
    encoding. The order of the rows makes no difference.
    """
    ranks = {name: rank for rank, name in enumerate(_listed_styles())}

    def priority(label: str) -> tuple[bool, int, str]:
        encoding = encodings[label]
        is_variant = label != encoding
        return is_variant, ranks.get(encoding, len(ranks)), label  # plain encodings first

    rows_per_color = math.ceil(len(encodings) / len(COLORS))
    styles: dict[str, Style] = {}
    # Sorted, so that the style of a row does not depend on the order in which a table shows the rows.
    for label in sorted(encodings, key=priority):
        preferred = style_of(label, encodings[label])
        styles[label] = _free_style(preferred, list(styles.values()), rows_per_color)
    return {label: styles[label] for label in encodings}


def _free_style(preferred: Style, taken: Sequence[Style], rows_per_color: int) -> Style:
    """Return the preferred style, or one near to it that is told apart from the taken ones.

    Among rows of one colour, rare dashes win over the preferred ones. So a plain encoding gets dashes if its
    colour already has a solid line.
    """
    count_of_color = Counter(style.color for style in taken)
    color = preferred.color
    if count_of_color[color] >= rows_per_color:
        color = min(COLORS, key=lambda name: count_of_color[name])  # the first of the rarest
    same_color = [style for style in taken if style.color == color]
    count_of_marker = Counter(style.marker for style in same_color)
    count_of_dash = Counter(style.dash for style in same_color)

    def cost(style: Style) -> tuple[bool, int, int, bool, bool]:
        return (
            style in same_color,  # two rows look alike
            count_of_dash[style.dash],  # dashes are told apart first
            count_of_marker[style.marker],
            style.dash != preferred.dash,  # among equally rare ones the preferred one
            style.marker != preferred.marker,
        )

    candidates = [Style(color, marker, dash) for dash in (SOLID, *DASHES) for marker in MARKERS]
    return min(candidates, key=cost)


@functools.cache
def _listed_styles() -> dict[str, Style]:
    text = files("posenc.report.charts").joinpath("styles.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    return {line["encoding"]: Style(line["color"], line["marker"]) for line in lines}


def _pick(choices: Mapping[str, object], text: str, purpose: str) -> str:
    """Return one of the choices, always the same one for a text."""
    names = list(choices)
    # With one hash for both, the remainders by 8 colours and 10 markers would be both even or both odd, so
    # that encodings of one colour would have five markers only.
    return names[_hash(f"{purpose} {text}") % len(names)]


def _hash(text: str) -> int:
    # Python's own hash of a text differs from one process to the next.
    # A name may hold a lone surrogate, which UTF-8 cannot encode.
    digest = hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:8], "big")
