"""Draw Vega-Lite specifications, by vl-convert: the looks that all charts share, and the file formats.

Colours in a specification are those of the page's style sheet (`var(--ink)`), so that one chart follows the
light and the dark page. A file has no style sheet: `on_paper` puts plain colours in their place.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import vl_convert

from posenc.core.errors import RunError

FORMATS = ("png", "svg", "pdf")
DPI = 200  # of a PNG
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
INK = "var(--ink)"
FAINT = "var(--faint)"
GRID = "var(--line)"
PAPER_COLORS = {"ink": "#1A1A1A", "faint": "#555555", "line": "#DDDDDD"}
PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"

# draws nothing, and leaves no core behind where it is ended
TRIAL = """
import resource, vl_convert
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
vl_convert.vegalite_to_svg({"mark": "point"}, allowed_base_urls=[])
"""

Spec = dict[str, Any]

PAGE_CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "line": {"strokeWidth": 2},
    "axis": {
        "labelColor": FAINT,
        "titleColor": FAINT,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "gridColor": GRID,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "titleFontWeight": "normal",
        "titlePadding": 6,
        "labelPadding": 3,
    },
    "header": {
        "labelColor": INK,
        "labelAnchor": "start",
        "labelFontWeight": "bold",
        "labelFontSize": 12,
        "labelPadding": 4,
        "title": None,
    },
    "legend": {
        "labelColor": INK,
        "labelFontSize": 12,
        "symbolSize": 90,
        "symbolStrokeWidth": 2,
        "title": None,
        "orient": "bottom",
        "columns": 2,
        "labelLimit": 150,
        "symbolLimit": 0,
        "symbolOpacity": 1,
    },
}
PAPER_CONFIG: Spec = {  # what differs in a file: it is as wide as the text of a paper, in points
    "background": "white",
    "padding": 3,
    "font": PAPER_FONT,
    "text": {"fontSize": 7, "font": PAPER_FONT},
    "line": {"strokeWidth": 1.2},
    "axis": {
        "labelFontSize": 7,
        "titleFontSize": 7.5,
        "domainWidth": 0.7,
        "tickWidth": 0.7,
        "tickSize": 3,
        "gridWidth": 0.5,
    },
    "header": {"labelFontSize": 7, "titleFontSize": 7.5},
    "legend": {
        "labelFontSize": 7,
        "titleFontSize": 7.5,
        "orient": "top",
        "labelLimit": 0,
        "offset": 4,
        "symbolSize": 26,
        "symbolStrokeWidth": 1.2,
        "columnPadding": 8,
        "rowPadding": 1,
    },
}


def quantitative(field: str, **options: Any) -> Spec:
    """Return an encoding channel of numbers."""
    return {"field": field, "type": "quantitative", **options}


def nominal(field: str, **options: Any) -> Spec:
    """Return an encoding channel of names."""
    return {"field": field, "type": "nominal", **options}


def on_paper(spec: Spec, colors: Mapping[str, str]) -> Spec:
    """Return a chart with small text, and plain colours for the names that the style sheet of a page has.

    `colors` are those that a chart adds to PAPER_COLORS, by name.
    """
    plain_colors = {**PAPER_COLORS, **colors}
    text = re.sub(r"var\(--(\w+)\)", lambda match: plain_colors[match[1]], json.dumps(spec))
    plain: Spec = json.loads(text)
    for key, value in PAPER_CONFIG.items():
        if isinstance(value, dict):
            plain["config"][key] = {**plain["config"].get(key, {}), **value}
        else:
            plain["config"][key] = value
    return plain


def draw_svg(spec: Spec) -> str:
    """Return a chart as SVG; nothing is loaded from anywhere. Raises RunError under a limit of memory."""
    _check_memory_limit()
    svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
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
    trial = subprocess.run([sys.executable, "-P", "-c", TRIAL], capture_output=True)
    if trial.returncode < 0:
        hint = "without the limit (ulimit -v unlimited), or draw elsewhere what --format csv writes"
        raise RunError(
            f"no picture can be drawn in the {limit:,} bytes that this process may take", hint=hint
        )


def image_bytes(svg: str, format: str) -> bytes:
    """Return a drawn chart in one of FORMATS: the same bytes for the same chart."""
    svg = _number_clips(svg)
    if format == "svg":
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
