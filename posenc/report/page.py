"""Write one HTML page with everything about a comparison: a single file that needs no network.

`page.html.j2` is the page, `page.css` and `page.js` go into it; Jinja escapes whatever is no markup.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import altair as alt
import vl_convert

from posenc import __version__
from posenc.core.errors import visible
from posenc.core.run_states import FINISHED
from posenc.report.charts.base import Chart, RowNames, distinct_facts
from posenc.report.charts.looks import PAGE, configured, specification
from posenc.report.charts.styles import MARKERS
from posenc.report.drawing import make_chart
from posenc.report.explain import terms_of_tables
from posenc.report.parts import chart_kinds
from posenc.report.protocol_words import heading_of, protocol_meanings
from posenc.report.reports import full_report, rows_table, short_report
from posenc.report.runs_table import ListedRun, run_table
from posenc.report.sentences.exact import is_exact
from posenc.report.sentences.facts import protocol_fact
from posenc.report.sentences.notes import also_measured_note, more_note
from posenc.report.tables import BEST, TIED, Table, TableCell, TableColumn
from posenc.report.texts import row_label
from posenc.results.beside.recall import RECALL
from posenc.results.comparison import Comparison
from posenc.results.runs import Run
from posenc.results.statistics.verdicts import COLLAPSED_MARGIN, SAME_MARGIN
from posenc.results.summary import summarize

# Nothing may be loaded from anywhere; scripts and styles are those of the page, by their hashes.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
# Words of ranks have the colours of verdicts: `below` is as good as `better`, and a reader learns five
# colours.
WORD_CLASSES = {  # style classes of the words in cells
    "better": "better",
    "same": "same",
    "worse": "worse",
    "collapsed": "collapsed",
    "unclear": "unclear",
    "below": "better",
    "tied": "same",
    "unresolved": "unclear",
    "above": "worse",
    "undertrained": "unclear",
}
MARK_MEANINGS = {BEST: "best of its column", TIED: "tied with the best"}
CHART_HEIGHT = 280  # pixels
LEGEND_COLUMNS = 2  # fit a phone
RUN_COLUMNS = ("run", "status", "encoding", "T", "seed", "tokens", "precision", "corpus")
MOST_OPEN_RUNS = 12  # a longer list is folded
# On a phone a row turns into a card of four columns. A cell with a longer text takes two of them, or a line.
LONGEST_NARROW = 8  # characters
LONGEST_WIDE = 18


@dataclass(frozen=True)
class PageRow:
    """A row of a table on the page."""

    name: str
    number: int | None  # of its style
    cells: Sequence[TableCell]


@dataclass(frozen=True)
class PageTable:
    """A table as the template reads it."""

    caption: str
    title: str
    heads: Sequence[str]
    rows: Sequence[PageRow]
    classes: Sequence[str]  # of the style sheet, by column; empty for the first one


@dataclass(frozen=True)
class PageChart:
    """A chart as the template reads it."""

    title: str
    specification: dict[str, Any]  # of Vega-Lite


@dataclass(frozen=True)
class Section:
    """What the section of a comparison shows."""

    title: str
    answer: str
    facts: Sequence[str]
    charts: Sequence[PageChart]
    table: PageTable
    units: Sequence[str]  # what the numbers and marks of the table are
    details: Sequence[PageTable]
    notes: Sequence[str]


def page(comparisons: Sequence[Comparison], command: Sequence[str] = ()) -> str:
    """Return the document, a function of its arguments: the same runs give the same bytes.

    Each comparison is a section; `command` is the command line that makes the page again.
    """
    names = RowNames(comparisons)
    # One RowNames for all sections, so that a row has one colour on the whole page.
    sections = [
        _section(comparison, title, names)
        for comparison, title in zip(comparisons, _titles(comparisons), strict=True)
    ]
    style = _style_sheet(names)
    # Vega's bundle has 0.90 MB. Bokeh's has 1.27, needs `eval`, and draws no SVG that takes its colours
    # from a style sheet.
    library = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    scripts = [library, _file_text("page.js")]
    script_hashes = " ".join(_hash(script) for script in scripts)
    # Comparisons of several protocols share their runs, and the page lists each run once.
    runs = {str(run.path): run for comparison in comparisons for run in comparison.runs}
    return _rendered(
        heading=f"{_count_of_encodings(comparisons)}: trained short, tested long",
        policy=POLICY.format(scripts=script_hashes, styles=_hash(style)),
        style=style,
        scripts=scripts,
        specs=[page_chart.specification for section in sections for page_chart in section.charts],
        sections=sections,
        swatches=[(row_style, MARKERS[row_style.marker]) for row_style in names.styles.values()],
        unfinished=[run for run in runs.values() if run.state != FINISHED],
        runs=_runs_table(list(runs.values())),
        most_open_runs=MOST_OPEN_RUNS,
        command=shlex.join(command),
        version=__version__,
        chips=WORD_CLASSES,
        means=MARK_MEANINGS,
        thresholds={"same": SAME_MARGIN, "collapsed": COLLAPSED_MARGIN},
        has_baseline=any(comparison.header.baseline is not None for comparison in comparisons),
        terms=terms_of_tables(),
        protocols=protocol_meanings(),
    )


def _rendered(*, policy: str, style: str, scripts: Sequence[str], **values: Any) -> str:
    """Fill the template in; `policy`, `style` and `scripts` are markup, everything else is escaped."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        # A misspelt name in the template fails, in place of a gap that nobody sees.
        undefined=jinja2.StrictUndefined,
        # Jinja escapes markup alone. `visible` also escapes characters that would turn or hide the text of a
        # name.
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_file_text("page.html.j2")).render(
        policy=Markup(policy),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        **values,
    )


def _count_of_encodings(comparisons: Sequence[Comparison]) -> str:
    encodings = {row.encoding for comparison in comparisons for row in comparison.rows}
    return "A positional encoding" if len(encodings) == 1 else f"{len(encodings)} positional encodings"


def _style_sheet(names: RowNames) -> str:
    """Return the page's style sheet, with a colour for each row in light and dark."""
    colors = []
    for number, style in enumerate(names.styles.values()):
        # By number and not by name: the name of a row must not become a part of the style sheet.
        colors.append(f"--s{number}:light-dark({style.on_white},{style.on_dark})")
    return f":root{{{';'.join(colors)}}}\n" + _file_text("page.css")


def _file_text(name: str) -> str:
    """Return the content of one of the files beside this one."""
    return files("posenc.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


# --- the sections


def _titles(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the title of each section: what is scored, in words, then what sets the section apart."""
    headings = []
    for comparison in comparisons:
        header = comparison.header
        stride = "" if header.stride is None else f", stride {header.stride}"
        headings.append(visible(heading_of(header.protocol)) + stride)
    titles = []
    for comparison, heading, facts in zip(comparisons, headings, distinct_facts(comparisons), strict=True):
        if headings.count(heading) == 1:
            titles.append(heading)
            continue
        protocol = visible(protocol_fact(comparison.header))  # the heading says it in words
        conditions = [fact for fact in facts if fact != protocol]
        titles.append(", ".join([heading, *conditions]))
    return titles


def _section(comparison: Comparison, title: str, names: RowNames) -> Section:
    short = short_report(comparison)
    full = full_report(comparison)
    numbers = {row_label(row): names.number(names.name(row)) for row in comparison.rows}
    # A page cannot follow these: they name options of the command line.
    hints_at_commands = (more_note(comparison), also_measured_note(comparison))
    return Section(
        title=title,
        answer=short.answer,
        facts=short.facts,
        charts=_charts(comparison, names),
        table=_page_table(rows_table(comparison), title, numbers),
        details=[_page_table(table, f"{title}: {table.title}", numbers) for table in full.tables],
        units=[note for note in short.notes if note not in hints_at_commands],
        notes=full.notes,
    )


def _charts(comparison: Comparison, names: RowNames) -> list[PageChart]:
    # The protocol `recall` has windows of its own, whose losses are no change against T.
    if comparison.header.protocol == RECALL.protocol:
        return []
    charts = []
    kind_of_table = "tasks" if is_exact(comparison) else "losses"
    for kind in chart_kinds().values():
        if kind.page != kind_of_table:
            continue
        chart = make_chart(kind.name, [comparison], names, PAGE)
        if chart is not None:
            charts += _page_charts(chart)
    return charts


def _page_charts(chart: Chart) -> list[PageChart]:
    """Return a chart for the template, or one for each panel if the panels show different quantities.

    Empty for a chart with a panel of each row, for which the page has no room.
    """
    if len(chart.panels) == 1:
        return [_page_chart(chart.title, chart, chart.layers)]
    if not chart.has_own_scales:
        return []
    charts = []
    for panel in chart.panels:
        # As charts of their own and not as facets, since only a single panel follows the width of its
        # container.
        layers = chart.layers.transform_filter(alt.datum.panel == panel)
        charts.append(_page_chart(f"{chart.title}: {panel}", chart, layers))
    return charts


def _page_chart(title: str, chart: Chart, layers: alt.LayerChart) -> PageChart:
    """Return layers of a chart as the template reads them."""
    sized = layers.properties(
        width="container",
        height=CHART_HEIGHT,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    return PageChart(title, specification(configured(sized, PAGE, chart.legend(LEGEND_COLUMNS))))


def _runs_table(runs: Sequence[Run]) -> PageTable | None:
    """Return the table of the runs, without their ages: the page is the same on every day."""
    if not runs:
        return None
    listed = [ListedRun(run, summarize(run)) for run in runs]
    return _page_table(run_table(listed, now=0, names=RUN_COLUMNS), "Runs", {})


def _page_table(table: Table, caption: str, numbers: Mapping[str, int]) -> PageTable:
    """Return a table for the template; `numbers` are those of the styles by row."""
    rows = []
    for name, *cells in table.rows:
        rows.append(PageRow(name.text, numbers.get(name.text), cells))
    classes = ["", *(_column_class(column) for column in table.columns[1:])]
    return PageTable(caption, table.title, table.heads, rows, classes)


def _column_class(column: TableColumn) -> str:
    """Return the class of a column: `line` and `wide` say how much of a card its cells take."""
    if column.is_words:
        return "words line"
    longest_cell = max((len(cell.text) for cell in column.cells), default=0)
    if longest_cell > LONGEST_WIDE:
        return "line"
    return "wide" if max(longest_cell, len(column.head)) > LONGEST_NARROW else ""
