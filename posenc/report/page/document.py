"""The page as a whole: head with its policy, sections, scripts."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib.resources import files

from posenc import __version__
from posenc.report.page import settings
from posenc.report.page.library import NOTICE, chart_library
from posenc.report.page.markup import Html, el, json_text
from posenc.report.page.reading import how_to_read
from posenc.report.page.sections import Sheet, section
from posenc.results.comparison import Comparison
from posenc.results.load import Run

# No address is allowed to be asked for anything; scripts and styles are those of the page, by their hashes.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def page(runs: Sequence[Run], comparisons: Sequence[Comparison], command: Sequence[str]) -> str:
    """The document, a function of its arguments."""
    sheet = Sheet(runs, comparisons)
    sections = [section(sheet, comparison, i) for i, comparison in enumerate(comparisons)]
    rows = settings.made(sheet.rows, sheet.runs)
    parts = [_part("settings", "Settings that differ", settings.differences(rows))]
    bad = settings.unfinished(runs)
    unfinished = [el("p", "Did not finish:"), bad] if bad is not None else []
    parts.append(_part("runs", "Runs", *unfinished, settings.runs_table(runs)))
    parts.append(_part("all", "Every setting", settings.full(rows)))
    parts.append(_part("environment", "Environment", settings.environment(runs)))
    parts.append(_part("reading", "How to read this", how_to_read()))
    again = el("pre", el("code", shlex.join(command)))
    parts.append(_part("again", "This page again", again))
    places = [*((f"c{i}", name) for i, name in enumerate(sheet.titles)), *PLACES]
    links = [el("a", name, href=f"#{place}") for place, name in places]
    heading = el("h1", _heading(comparisons))
    toggle = el("button", "Dark", id="theme", type="button", aria_pressed="false", hidden=True)
    top = el("header", el("div", heading, toggle, class_="top"), el("nav", *links, aria_label="Sections"))
    footer = el("footer", el("p", f"posenc {__version__}. {NOTICE}"))
    body = [
        el("a", "Skip to the comparison", href="#main", class_="skip"),
        top,
        el("main", *sections, *parts, id="main", tabindex="-1"),
        footer,
    ]
    return _document(_heading(comparisons), body, sheet)


PLACES = [
    ("settings", "settings"),
    ("runs", "runs"),
    ("all", "every setting"),
    ("environment", "environment"),
    ("reading", "how to read"),
    ("again", "this page again"),
]


def _document(title: str, body: Sequence[Html], sheet: Sheet) -> str:
    style = sheet.colors() + _file("page.css")
    scripts = [_file("tables.js"), chart_library(), _file("charts.js")]
    policy = POLICY.format(scripts=" ".join(map(_hash, scripts)), styles=_hash(style))
    head = [
        el("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        Html(f"<style>{style}</style>"),
    ]
    data = el("script", json_text(sheet.data()), type="application/json", id="data")
    code = [Html(f"<script>{script}</script>") for script in scripts]
    whole = el("html", el("head", *head), Html("\n"), el("body", *body, data, *code), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _part(place: str, title: str, *content: object) -> Html:
    return el("section", el("h2", title), *content, id=place)


def _heading(comparisons: Sequence[Comparison]) -> str:
    encodings = {row.encoding for one in comparisons for row in one.rows}
    count = f"{len(encodings)} positional encodings" if len(encodings) != 1 else "A positional encoding"
    return f"{count}: trained short, tested long"


def _file(name: str) -> str:
    return files("posenc.report.page").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
