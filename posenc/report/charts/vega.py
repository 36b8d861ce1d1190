"""Draw charts with vl-convert, as PNG, SVG or PDF; nothing is loaded from anywhere."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from functools import cache
from typing import Any
from xml.sax.saxutils import quoteattr

import vl_convert

from posenc.core.errors import RunError

DPI = 200  # of a PNG

# draws nothing, and leaves no core behind where it is ended
TRIAL = """
import resource, vl_convert
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
vl_convert.vegalite_to_svg({"mark": "point"}, allowed_base_urls=[])
"""
SAMPLE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20"><text y="15" {font}>{text}</text></svg>'
)


def has_font(family: str) -> bool:
    """Tell whether a family of fonts is installed: text in one that is not leaves the picture empty."""
    font = f"font-family={quoteattr(family)}"
    # By drawing it, since vl-convert leaves out what it has no font for without an error.
    sample = bytes(vl_convert.svg_to_png(SAMPLE.format(font=font, text="Abc")))
    empty = bytes(vl_convert.svg_to_png(SAMPLE.format(font=font, text="")))
    return sample != empty


def draw_svg(specification: dict[str, Any]) -> str:
    """Return a chart of Vega-Lite as SVG. Raises RunError under a limit of memory."""
    _check_memory_limit()
    # No address is allowed, so that a chart cannot be made to load something.
    svg: str = vl_convert.vegalite_to_svg(specification, allowed_base_urls=[])
    return svg


@cache
def _check_memory_limit() -> None:
    """Raise RunError where `ulimit -v` leaves no room for V8, the engine that draws.

    It reserves gigabytes of addresses, and ends the whole process where it gets none. So under a limit, and
    only then, another process tries it first.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    # -P keeps Python from importing a file `vl_convert.py` that happens to lie in the user's folder.
    trial = subprocess.run([sys.executable, "-P", "-c", TRIAL], capture_output=True)
    # A signal ended the trial, as V8 does without memory. Any other failure shows when the chart is drawn.
    if trial.returncode < 0:
        hint = "without the limit (ulimit -v unlimited), or draw elsewhere what --format csv writes"
        raise RunError(
            f"no picture can be drawn in the {limit:,} bytes that this process may take", hint=hint
        )


def image_bytes(svg: str, format: str) -> bytes:
    """Return a drawn chart in one of `figure.PICTURE_FORMATS`: the same bytes for the same chart."""
    svg = _number_clips(svg)
    if format == "svg":
        # Numbers without a unit are pixels. The first two are the width and the height of the figure.
        in_points = re.sub(r' (width|height)="([\d.]+)"', r' \1="\2pt"', svg, count=2)
        return in_points.encode()
    if format == "pdf":
        return _sort_names(bytes(vl_convert.svg_to_pdf(svg)))
    return bytes(vl_convert.svg_to_png(svg, ppi=DPI))


def _number_clips(svg: str) -> str:
    """Number clip paths from 0: Vega counts on from one figure of a process to the next."""
    names = dict.fromkeys(re.findall(r'id="(clip\d+)"', svg))
    numbered = {name: f"clip{number}" for number, name in enumerate(names)}
    return re.sub(r"\bclip\d+\b", lambda match: numbered.get(match[0], match[0]), svg)


def _sort_names(pdf: bytes) -> bytes:
    """Sort the names in a PDF's dictionaries of resources, which come in any order."""

    def in_order(match: re.Match[bytes]) -> bytes:
        return b"".join(sorted(match[0].splitlines(keepends=True)))

    return re.sub(rb"(?: +/\w+ \d+ 0 R\n)+", in_order, pdf)
