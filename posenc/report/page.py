"""Write one HTML page with everything about a comparison: a single file that needs no network.

`page.html.j2` is the page, `page.css` and `page.js` go into it; Jinja escapes whatever is no markup.
"""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import vl_convert

from posenc import __version__
from posenc.core.atomic_files import write_text_atomic
from posenc.core.errors import visible
from posenc.report.captions import explain, label, own_text
from posenc.report.charts import chart, stored
from posenc.report.series import Names, panel_titles
from posenc.report.table import BEST, TIED, Table, full_report_of, report_of, rows_table
from posenc.results.comparison import Comparison
from posenc.results.schema import RECALL

# Nothing may be loaded from anywhere; scripts and styles are those of the page, by their hashes.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
CHIPS = {word: word for word in ("better", "same", "worse", "collapsed", "unclear")}
CHIPS |= {"below": "better", "tied": "same", "above": "worse", "undertrained": "unclear"}  # style classes
ON_PAGE = {"width": "container", "height": 280, "autosize": {"type": "fit-x", "contains": "padding"}}
MEANS = {BEST: "best", TIED: "not distinguishable from the best"}


def write_page(path: Path, comparisons: Sequence[Comparison], command: Sequence[str] = ()) -> None:
    """Write the page, whole or not at all; the same runs give the same bytes.

    Each comparison is a section; `command` is the command line that makes the page again. Raises RunError
    where the file cannot be written.
    """
    write_text_atomic(path, page(comparisons, command))


def page(comparisons: Sequence[Comparison], command: Sequence[str]) -> str:
    """Return the document, a function of its arguments."""
    import jinja2
    from markupsafe import Markup, escape

    runs = {str(run.path): run for one in comparisons for run in one.runs}
    names = Names(comparisons)
    sections = [*_sections(comparisons, names)]
    styles = list(names.styles.values())
    encodings = {row.encoding for one in comparisons for row in one.rows}
    what = f"{len(encodings)} positional encodings" if len(encodings) != 1 else "A positional encoding"
    colors = [f"--s{i}:light-dark({style.color},{style.dark})" for i, style in enumerate(styles)]
    style = f":root{{{';'.join(colors)}}}\n" + own_text("page.css")
    # of 0.90 MB; Bokeh's has 1.27, draws no SVG that takes colours from a style sheet, and needs `eval`
    library = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    scripts = [library, own_text("page.js")]
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(own_text("page.html.j2")).render(
        heading=f"{what}: trained short, tested long",
        policy=Markup(POLICY.format(scripts=" ".join(map(_hash, scripts)), styles=_hash(style))),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        specs=[chart["spec"] for section in sections for chart in section["charts"]],
        sections=sections,
        swatches=[(style, stored("shapes")[style.marker]) for style in styles],
        unfinished=[run for run in runs.values() if run.state != "finished"],
        command=shlex.join(command),
        version=__version__,
        chips=CHIPS,
        means=MEANS,
        rules=escape(explain()),  # our own, in lines
    )


# --- the sections


def _sections(comparisons: Sequence[Comparison], names: Names) -> Iterator[dict[str, Any]]:
    """Yield what the section of each comparison shows."""
    for comparison, panel in zip(comparisons, panel_titles(comparisons), strict=True):
        name = panel or comparison.header.protocol
        short, full = report_of(comparison), full_report_of(comparison)
        kinds = [] if comparison.header.protocol == RECALL else ["context", "change", "use"]
        charts = [found for kind in kinds if (found := chart(kind, [comparison], names))]
        numbers = {label(row): names.number(names.of(row)) for row in comparison.rows}
        yield {
            "title": name,
            "answer": short.answer,
            "facts": short.facts,
            "charts": [{"title": one.title, "spec": one.spec | ON_PAGE} for one in charts],
            "table": _table(rows_table(comparison), name, numbers),
            "details": [_table(one, f"{name}: {one.title}", numbers) for one in full.tables],
            "notes": [*short.notes, *full.notes],
        }


def _table(table: Table, caption: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return a table for the template; `numbers` are those of the styles by row."""
    rows = [{"name": row[0].text, "number": numbers[row[0].text], "cells": row[1:]} for row in table.rows]
    left = [i - 1 for i in table.left]
    return {"caption": caption, "title": table.title, "heads": table.heads, "rows": rows, "left": left}


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
