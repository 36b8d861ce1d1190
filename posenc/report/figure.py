"""The options of a picture: size, caption, legend, font and labels. They are checked before runs are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posenc.core.errors import UserError
from posenc.core.paths import output_file
from posenc.report.charts.names import plots
from posenc.report.texts import row_label
from posenc.results.comparison import Comparison

PICTURE_FORMATS = ("png", "svg", "pdf")
POINTS_OF_INCH = 72
TEXT_WIDTH = 5.5 * POINTS_OF_INCH  # of the text of a paper
SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?(?:in)?")
SMALLEST_SIDE = 1.0  # inches
LARGEST_SIDE = 40.0  # inches
SIZES = f"{SMALLEST_SIDE:g} to {LARGEST_SIDE:g} inches: 3.25x2.4, or the width alone: 5.5"
# a comma between two labels: after it, the next `=` comes before the next comma
COMMA_BEFORE_NAME = re.compile(r",(?=[^,]*=)")


@dataclass(frozen=True)
class Figure:
    """How the picture of a comparison is laid out in a file."""

    width: float | None = None  # points; None: TEXT_WIDTH
    height: float | None = None  # points; None: as high as the chart needs
    caption: str | None = None  # below the chart; charts.names.OWN_CAPTION: what posenc says about it
    has_legend: bool = True
    font: str | None = None  # a family that is installed


DEFAULT = Figure()


def figure_of(size: str | None, caption: str | None, font: str | None, *, has_legend: bool) -> Figure:
    """Return the figure that options ask for; `size` is in inches, `3.25x2.4`. Raises UserError."""
    width = None
    height = None
    if size is not None:
        width, height = size_in_points(size)
    if font is not None:
        font = check_font(font)
    return Figure(width, height, caption, has_legend, font)


def size_in_points(text: str) -> tuple[float, float | None]:
    """Return width and height of `3.25x2.4`, in inches; the height may be left out. Raises UserError."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UserError("--size", text, "is not WIDTHxHEIGHT in inches", allowed=SIZES)
    inches = [float(side) for side in match.groups() if side is not None]
    # A size in points or pixels, such as 800x600, would make a picture of 20 metres.
    if not all(SMALLEST_SIDE <= side <= LARGEST_SIDE for side in inches):
        raise UserError("--size", text, "is not the size of a figure", allowed=SIZES)
    width, *height = (side * POINTS_OF_INCH for side in inches)
    return width, height[0] if height else None


def check_font(family: str) -> str:
    """Return the name of an installed family of fonts. Raises UserError."""
    from posenc.report.charts.vega import has_font

    # A font that is missing leaves the whole figure without text, and without an error.
    if not has_font(family):
        hint = "fc-list : family  lists the installed ones; serif, sans-serif and monospace always work"
        raise UserError("--font", family, "there is no such font on this machine", hint=hint)
    return family


def check_picture(option: str, path: Path) -> Path:
    """Return the path of a picture. Raises UserError for a wrong suffix or folder."""
    if path.suffix[1:].lower() not in PICTURE_FORMATS:
        allowed = ", ".join(f".{name}" for name in PICTURE_FORMATS)
        raise UserError(option, path, "its ending names the format", allowed=allowed)
    return output_file(option, path)


def check_kind(kind: str) -> None:
    """Raise UserError if there is no such kind of chart."""
    if kind not in plots():
        raise UserError("--plot-kind", kind, "no such plot", allowed=list(plots()))


# --- names of rows


def split_labels(texts: Sequence[str]) -> list[str]:
    """Split `sqrt_bias=Ours,rope=RoPE`, but not at a comma inside of a text. Raises UserError."""
    labels = [label.strip() for text in texts for label in COMMA_BEFORE_NAME.split(text)]
    for label in labels:
        if "=" not in label:
            raise UserError("--labels", label, "is not NAME=TEXT", hint="--labels sqrt_bias=Ours,rope=RoPE")
    return labels


def renamed(comparisons: Sequence[Comparison], labels: Sequence[str]) -> list[Comparison]:
    """Return comparisons whose rows have other names in pictures, tables and sentences.

    `labels` are texts NAME=TEXT. Raises UserError for a name that no row has, and where two rows of a table
    would have the same name.
    """
    rows = [row for comparison in comparisons for row in comparison.rows]
    names = list(dict.fromkeys(row_label(row) for row in rows))
    text_of = dict(_split_at_name(label, names) for label in labels)
    renamed_comparisons = []
    for comparison in comparisons:
        new_rows = [replace(row, name=text_of.get(row_label(row))) for row in comparison.rows]
        new_names = [row_label(row) for row in new_rows]
        # Points and legends are told apart by their names alone, so that two rows of one name would become
        # one line.
        for name in new_names:
            if new_names.count(name) > 1:
                raise UserError("--labels", ",".join(labels), f"two rows would be called {name}")
        baseline = comparison.header.baseline
        if baseline in text_of:
            baseline = text_of[baseline]
        header = replace(comparison.header, baseline=baseline)
        renamed_comparisons.append(replace(comparison, header=header, rows=tuple(new_rows)))
    return renamed_comparisons


def _split_at_name(label: str, names: Sequence[str]) -> tuple[str, str]:
    """Return the row and its text. The name of a row may hold `=` itself: `rope base=500=RoPE`."""
    # Every `=` is tried, since only the names of rows say at which of them the text begins.
    for match in re.finditer("=", label):
        name = label[: match.start()].strip()
        text = label[match.end() :].strip()
        if name in names and text:
            return name, text
    name, _, text = label.partition("=")
    problem = "there is no such row" if text.strip() else "needs a text"
    raise UserError("--labels", name, problem, allowed=names)
