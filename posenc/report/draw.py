"""Draw pictures of encodings with matplotlib as PNG, SVG or PDF, or write their numbers for a terminal."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import numpy as np

from posenc.report.pictures import Curves, Map, Picture

FORMATS = ("png", "svg", "pdf")
WIDTH, ROW, COLUMNS = 7.0, 2.75, 2  # inches, inches of a row of panels, panels
LOG_RANGE = 1e7  # of a logarithmic axis: weights below that share of the largest are not shown
# Okabe, Ito: told apart whatever the colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)))
GREY = "0.45"
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
TEXT_WIDTH, NUMBER, NAME = 80, 8, 24  # columns of a terminal, of a number, of a line's name
MOST_NUMBERS = (TEXT_WIDTH - NAME) // NUMBER


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of FORMATS."""
    import matplotlib
    import matplotlib.style

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as glyphs that the font lacks: drawn as boxes
        matplotlib.rcdefaults()
        matplotlib.style.use(str(files("posenc.report").joinpath("posenc.mplstyle")))
        buffer = io.BytesIO()
        draw(picture).savefig(buffer, format=format, metadata=METADATA[format])
        return buffer.getvalue()


def draw(picture: Picture) -> Any:
    """Make the figure of a picture; of an odd number of panels the first has a row of its own."""
    from matplotlib.figure import Figure

    places = [*([0] if len(picture.panels) % COLUMNS else []), *range(len(picture.panels))]
    rows = [places[i : i + COLUMNS] for i in range(0, len(places), COLUMNS)]
    height = ROW * len(rows) + 0.3 + 0.13 * len(picture.notes)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    head = "\n".join([picture.title, *picture.notes]).replace("$", r"\$")  # others' text is no mathematics
    figure.suptitle(head, x=0.01, ha="left", fontsize=8)
    for axes, panel in zip(figure.subplot_mosaic(rows).values(), picture.panels, strict=True):
        axes.set_title(panel.title.replace("$", r"\$")).set_in_layout(False)  # a long one narrows no column
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        if isinstance(panel, Curves):
            _curves(axes, panel)
        else:
            low, high = panel.at[0] - 0.5, panel.at[-1] + 0.5
            axes.imshow(panel.z, extent=(low, high, high, low), cmap="cividis", vmin=0, vmax=1)
            axes.set_ylabel(f"{panel.y_label} (yellow: seen)")
    return figure


def _curves(axes: Any, panel: Curves) -> None:
    import matplotlib

    own = [line for line in panel.lines if not line.reference]
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(len(own), 1)))
    for i, line in enumerate([*own, *(line for line in panel.lines if line.reference)]):
        look: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "zorder": 1.5}
        if not line.reference:  # each thinner than the one before: seen if they coincide
            look = {"color": shades[i] if panel.ordered else COLOURS[i % len(COLOURS)]}
            look |= {"linestyle": DASHES[i % len(DASHES)], "linewidth": 1.2 + 0.2 * (len(own) - 1 - i)}
        if panel.points:
            look |= {"linestyle": "none", "marker": "o", "markersize": 4}
        axes.plot(line.x, line.y, label=line.label.replace("$", r"\$"), **look)
    if panel.points:
        axes.margins(x=0.03)
    mark = {"color": GREY, "linewidth": 0.8, "linestyle": DASHES[1], "zorder": 1}
    for name, at in panel.marks.items():
        axes.axvline(at, **mark)
        axes.text(at, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", fontsize=7)
    for name, at in panel.y_marks.items():
        axes.axhline(at, **mark)
        axes.text(1.01, at, name, transform=axes.get_yaxis_transform(), va="center", fontsize=7)
    if panel.x_scale == "symlog":
        axes.set_xscale("symlog", linthresh=1, linscale=0.35)
    if panel.y_scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()  # a decade at least: else it shows noise
        axes.set_ylim(bottom=min(max(low, high / LOG_RANGE), high / 10))
    if len(panel.lines) > 1 or panel.lines[0].label:
        columns = 4 if max(len(line.label) for line in panel.lines) < 10 else 3
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)


# --- as text


def picture_text(picture: Picture) -> str:
    """Return title, notes and the numbers of each panel, one below the other, 80 columns wide."""
    parts = [[picture.title, *picture.notes]]
    parts += [[*_numbers(panel)] for panel in picture.panels]
    return "\n\n".join(
        "\n".join(
            textwrap.fill(line, TEXT_WIDTH, subsequent_indent="  ") if len(line) > TEXT_WIDTH else line
            for line in lines
        )
        for lines in parts
    )


def _numbers(panel: Curves | Map) -> Iterator[str]:
    """Yield a row for each line: its values at the ends, at the marks, and at powers of 4 between them."""
    if isinstance(panel, Map):
        yield f"{panel.title}: the last query sees {np.nansum(panel.z[-1]):.0f} of {panel.z.shape[1]} keys"
        return
    every = np.unique(np.concatenate([line.x for line in panel.lines]))
    powers = [4.0**k for k in range(20) if 4.0**k < every[-1]]
    between = np.linspace(every[0], every[-1], MOST_NUMBERS) if panel.x_scale == "linear" else powers
    wanted = [every[0], *between, *panel.marks.values(), every[-1]]
    at = np.unique(every[np.abs(every[:, None] - np.array(wanted)).argmin(0)]).tolist()
    at = at if len(at) <= MOST_NUMBERS else [at[0], *at[1 - MOST_NUMBERS :]]
    names = {value: name for name, value in panel.marks.items()}
    yield f"{panel.title}: {panel.y_label}"
    yield panel.x_label.ljust(NAME) + "".join(f"{names.get(x, f'{x:g}'):>{NUMBER}}" for x in at)
    for line in panel.lines:
        known = {
            x: f"{y + 0.0:,.0f}" if 100 <= abs(y) < 1e6 else f"{y + 0.0:.3g}"
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        }
        yield (
            line.label[: NAME - 1].ljust(NAME) + "".join(f"{known.get(x, ''):>{NUMBER}}" for x in at)
        ).rstrip()
    marks = {name: value for name, value in {**panel.marks, **panel.y_marks}.items() if name}
    if marks:
        yield ", ".join(f"{name} = {value:g}" for name, value in marks.items())
