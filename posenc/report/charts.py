"""The charts of comparisons by kind, and their files: PNG, SVG or PDF, as wide as the text of a paper."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.chart import Chart, Panel, RowNames, panels_of
from posenc.report.chart_kinds import PLOTS
from posenc.report.grid_charts import change_grid, recall_grid
from posenc.report.line_charts import change_chart, loss_chart
from posenc.report.use_chart import CHARACTER, names_layer, use_chart
from posenc.report.use_chart import HEIGHT as HEIGHT_WITH_NAMES
from posenc.report.vega import FORMATS, Spec, draw_svg, image_bytes, on_paper
from posenc.results.comparison import Comparison
from posenc.results.records import RECALL

WIDTH = 396  # points of a figure, 5.5 inches
HEIGHT = 150  # points, of a panel of lines
NARROWEST_PANEL = 150  # points, with its axis
LEGEND_SYMBOL = 24  # points, of an entry without its name
SMALL_POINT = 26
NOTE = {  # below a figure, as the title of its chart
    "orient": "bottom",
    "anchor": "start",
    "frame": "bounds",
    "fontSize": 7,
    "fontWeight": "normal",
    "color": "#555555",
    "lineHeight": 9.5,
    "offset": 6,
}


@dataclass(frozen=True)
class Kind:
    """A kind of chart."""

    make: Callable[[Sequence[Panel], RowNames], Chart | None]
    problem: str = "no run has a number yet"  # if there is nothing to draw


NO_RECALL = "no run was asked to recall: posenc train experiment=recall"
KINDS_OF_CHARTS = {
    "context": Kind(loss_chart),
    "change": Kind(change_chart),
    "heatmap": Kind(change_grid),
    "recall": Kind(recall_grid, NO_RECALL),
    "use": Kind(use_chart, NO_RECALL),
}
assert KINDS_OF_CHARTS.keys() == PLOTS.keys()
KINDS = {RECALL: "recall"}  # instead of the default, by protocol


def make_chart(kind: str, comparisons: Sequence[Comparison], names: RowNames) -> Chart | None:
    """Return the chart of a kind (a key of PLOTS), a panel for each comparison; None without a number."""
    return KINDS_OF_CHARTS[kind].make(panels_of(comparisons), names)


# --- files


def save_plot(path: Path, kind: str, comparisons: Sequence[Comparison]) -> None:
    """Write a figure as its suffix says, whole or not at all. Raises UserError; RunError for a full disk."""
    target = check_plot(path, kind)
    write_bytes_atomic(target, plot_bytes(path.suffix[1:].lower(), kind, comparisons))


def check_plot(path: Path, kind: str) -> Path:
    """Return the path of the figure. Raises UserError for a wrong suffix, folder or kind."""
    if path.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--plot", path, "its ending names the format", allowed=allowed)
    target = output_file("--plot", path)
    check_kind(kind)
    return target


def check_kind(kind: str) -> None:
    """Raise UserError for a kind that is not in PLOTS."""
    if kind not in PLOTS:
        raise UserError("--plot-kind", kind, "no such plot", allowed=list(PLOTS))


def plot_bytes(format: str, kind: str, comparisons: Sequence[Comparison]) -> bytes:
    """Return a file's content, the same bytes for the same runs; `format` is one of vega.FORMATS."""
    names = RowNames(comparisons)
    chart = make_chart(kind, comparisons, names)
    if chart is None:
        raise UserError("--plot-kind", kind, KINDS_OF_CHARTS[kind].problem)
    columns = _columns_of_panels(chart)
    if kind == "heatmap":
        columns = 1  # its numbers need the width
    panel_width = WIDTH / columns
    svg = draw_svg(_figure_spec(chart, names, panel_width, columns))
    # The width of axes and names is known only once they are drawn, so the figure is drawn twice.
    drawn_width = float(re.findall(r' width="([\d.]+)"', svg)[0])
    panel_width = max(40.0, panel_width + (WIDTH - drawn_width) / columns)
    return image_bytes(draw_svg(_figure_spec(chart, names, panel_width, columns)), format)


def _columns_of_panels(chart: Chart) -> int:
    return max(1, min(len(chart.panels), WIDTH // NARROWEST_PANEL))


def _figure_spec(chart: Chart, names: RowNames, panel_width: float, columns: int) -> Spec:
    """Lay a chart out for a file: panels, the legend above, the note below, small text, its own colours.

    `panel_width` is that of a panel without its axis, in points.
    """
    colors = {f"s{number}": style.on_white for number, style in enumerate(names.styles.values())}
    spec = on_paper(chart.spec, colors)
    config = spec.pop("config")
    longest_name = max((len(row) for row in chart.rows), default=1)
    config["legend"]["columns"] = max(1, int(WIDTH / (LEGEND_SYMBOL + CHARACTER * longest_name)))
    size = spec["layer"][-1]["encoding"].get("size")
    if size is not None:
        size["value"] = min(size["value"], SMALL_POINT)
    note = textwrap.wrap(visible(chart.note), int(WIDTH / CHARACTER))
    figure = {
        "$schema": spec.pop("$schema"),
        "data": spec.pop("data"),
        "config": config,
        "title": {**NOTE, "text": note},
    }
    panel = {"width": panel_width, "height": HEIGHT, **spec}
    if len(chart.panels) > 1:
        return {**figure, **_facets(chart, panel, columns)}
    if chart.names_points:
        config["legend"]["disable"] = True
        layers = [*spec["layer"], names_layer({**panel, **figure}, panel_width)]
        panel |= {"height": HEIGHT_WITH_NAMES, "layer": layers}
    return {**figure, **panel}


def _facets(chart: Chart, panel: Spec, columns: int) -> Spec:
    """Return the panels beside and below each other; each has its own axes."""
    resolve: Spec = {"axis": {"x": "independent", "y": "independent"}}
    if chart.has_own_scales:
        resolve["scale"] = {"x": "shared", "y": "independent"}
    return {
        "facet": {"field": "panel", "type": "nominal", "sort": list(chart.panels)},
        "columns": columns,
        "spec": panel,
        "spacing": 14,
        "resolve": resolve,
    }
