"""A section for each comparison: sentence, charts, tables, notes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.report.page.charts import SHAPES, Chart, look, spec_of
from posenc.report.page.drawn import context_charts, training_chart, training_points
from posenc.report.page.markup import Html, el, join
from posenc.report.page.points import Point, points_of
from posenc.report.page.tables import comparison_table, extras_table
from posenc.report.plots import plot_bytes
from posenc.report.plots.series import Names, panel_titles
from posenc.report.summary import summary_sentence
from posenc.report.words import MARKS, captions, label, title
from posenc.results.comparison import Comparison, Row
from posenc.results.load import Run


class Sheet:
    """What the sections share: numbers for rows, and the data that the charts are drawn from."""

    def __init__(self, runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
        self.runs = {str(run.path): run for run in runs}
        self.comparisons = comparisons
        self.names = Names(comparisons)
        rows = [row for one in comparisons for row in one.rows]
        self.numbers: dict[str, int] = {}  # by the row's name in the page
        self._styles = []
        for row in rows:
            if self.names.of(row) not in self.numbers:
                self.numbers[self.names.of(row)] = len(self.numbers)
                self._styles.append(self.names.style(row))
        self.titles = _titles(comparisons)
        self.rows = [
            (self.name(row), row.runs) for row in sorted(rows, key=lambda row: row.extend is not None)
        ]
        self._points: dict[str, list[Point]] = {}
        self._specs: list[dict[str, Any]] = []
        self.trained: set[str] = set()  # runs whose training is drawn already

    def number(self, row: Row) -> int:
        """Of the row in the page: the same encoding with the same settings has one in all sections."""
        return self.numbers[self.names.of(row)]

    def name(self, row: Row) -> Html:
        """The row's name behind a piece of its line."""
        return join([self.swatch(self.number(row)), " ", label(row)])

    def swatch(self, number: int) -> Html:
        """A piece of the row's line."""
        dash = " ".join(f"{2 * part:g}" for part in self._styles[number].dash)
        line = el(
            "line", x1="0", x2="22", y1="5", y2="5", stroke=f"var(--s{number})", stroke_dasharray=dash or None
        )
        shape = SHAPES.get(self._styles[number].marker, SHAPES["o"])
        mark = el("path", d=shape, fill=f"var(--s{number})", transform="translate(11 5) scale(3.6)")
        return el("svg", line, mark, class_="swatch", viewBox="0 0 22 10", aria_hidden="true")

    def chart(self, chart: Chart, points: Sequence[Point]) -> Html:
        """The place of a chart, which the script fills."""
        self._points.setdefault(chart.data, [{**point, "i": i} for i, point in enumerate(points)])
        spec = spec_of(chart, points, look(self._styles))
        self._specs.append({"spec": spec, "data": chart.data})
        number, views = len(self._specs) - 1, []
        if spec["usermeta"]["near"] is not None:
            for view, word in (("whole", "all"), ("near", "detail")):
                on = "true" if (view == "near") == chart.start_near else "false"
                views.append(el("button", word, type="button", data_view=view, aria_pressed=on))
        head = el("figcaption", el("h3", chart.title), " ", el("span", chart.unit, class_="unit"))
        tools = el("div", *views, class_="views", role="group", aria_label="Range of the loss", hidden=True)
        says = f"{chart.title}, {chart.unit}. The arrow keys read the points; the table has all numbers."
        role = {"role": "application", "aria_roledescription": "chart", "aria_label": says}
        plot = el("div", class_="plot", tabindex="0", **role)
        tip = el("div", class_="tip", role="status", aria_live="polite", hidden=True)
        frame = el("div", plot, tip, class_="frame")
        return el("figure", head, tools, frame, class_="chart", data_chart=number)

    def data(self) -> dict[str, Any]:
        """All that the script needs."""
        return {"rows": list(self.numbers), "points": self._points, "charts": self._specs}

    def colors(self) -> str:
        """The style sheet's colours of the rows, for a light and a dark ground."""
        pairs = [f"--s{i}:light-dark({style.color},{style.dark})" for i, style in enumerate(self._styles)]
        return f":root{{{';'.join(pairs)}}}\n"


def section(sheet: Sheet, comparison: Comparison, at: int) -> Html:
    """The section of the comparison with this index."""
    rows = comparison.rows
    numbers = [sheet.number(row) for row in rows]
    points = points_of(comparison, numbers)
    charts = [sheet.chart(one, points) for one in context_charts(comparison, points, f"c{at}")]
    training, unseen = _training(sheet, comparison, at)
    charts += training
    names = [sheet.name(row) for row in rows]
    place = sheet.titles[at]
    second = extras_table(comparison, names, f"{place}: use of context, probes")
    sentence = summary_sentence(comparison)
    drawn = []
    if charts:
        drawn = [_legend(sheet, numbers), el("div", *charts, class_="charts"), _still(sheet, at)]
    notes = [*captions(comparison, MARKS), *unseen]
    return el(
        "section",
        el("h2", place),
        *([el("p", sentence, class_="summary")] if sentence else []),
        el("p", title(comparison), class_="about"),
        *drawn,
        comparison_table(comparison, names, sheet.runs, f"{place}: {comparison.header['unit']}"),
        *([second] if second is not None else []),
        el("ul", *(el("li", line) for line in notes), class_="notes"),
        id=f"c{at}",
    )


def _training(sheet: Sheet, comparison: Comparison, at: int) -> tuple[list[Html], list[str]]:
    """The training curves of the runs that no section before has drawn, and what is not in them."""
    paths = {path for row in comparison.rows for path in row.runs}
    if paths <= sheet.trained:
        return [], []
    sheet.trained |= paths
    points, unseen = training_points(comparison, list(sheet.runs.values()), sheet.names, sheet.numbers)
    chart = training_chart(points, f"t{at}")
    return ([], []) if chart is None else ([sheet.chart(chart, points)], unseen)


def _legend(sheet: Sheet, numbers: Sequence[int]) -> Html:
    """A button for each row, that hides it in every chart."""
    names = {number: name for name, number in sheet.numbers.items()}
    keys = [
        el("button", sheet.swatch(n), " ", names[n], type="button", data_row=n, aria_pressed="true")
        for n in dict.fromkeys(numbers)
    ]
    both = [el("button", f"{word} all", type="button", data_all=word) for word in ("show", "hide")]
    return el(
        "div",
        *keys,
        *(both if len(keys) > 2 else []),
        class_="legend",
        role="group",
        aria_label="Rows shown in the charts",
    )


def _still(sheet: Sheet, at: int) -> Html:
    """Where there are no scripts: a picture for the first comparison, for the others a word."""
    note = el("p", "The charts need JavaScript; the tables below have all their numbers.")
    if at > 0:
        return el("noscript", note)
    try:
        picture = plot_bytes("svg", "context", list(sheet.runs.values()), sheet.comparisons[:1], 8.0)
    except UserError:
        return el("noscript", note)
    # as an image no script of it could run, whatever the names in it hold
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture).decode()}"
    return el(
        "noscript",
        note,
        el("img", src=source, alt="Loss against context, as in the table below", class_="still"),
    )


def _titles(comparisons: Sequence[Comparison]) -> list[str]:
    found = panel_titles(comparisons)
    return [
        one or visible(comparison.header["protocol"])
        for one, comparison in zip(found, comparisons, strict=True)
    ]
