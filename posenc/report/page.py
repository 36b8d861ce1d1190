"""Write one HTML page with everything about a comparison: a single file that needs no network.

`page.html.j2` is the page, `page.css` and `page.js` go into it; Jinja escapes whatever is no markup.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from posenc import __version__
from posenc.core.errors import RunError, visible
from posenc.report.captions import captions, label, millions, summary_sentence, title
from posenc.report.charts import SHAPES, context_charts, training_chart
from posenc.report.colors import Style
from posenc.report.plots.series import Names, panel_titles
from posenc.report.table import MARKS, CellText, Table, main_table, side_table
from posenc.results.comparison import Comparison, Row
from posenc.results.load import Run
from posenc.results.settings import as_text, differing, flatten
from posenc.results.store import write_text_atomic

# Nothing may be loaded from anywhere; scripts and styles are those of the page, by their hashes.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
UNSET = "–"
OF_A_RUN = {"seed", "name"}  # settings that differ between the seeds of a row
CHIPS = {word: word for word in ("better", "same", "worse", "collapsed", "unclear")}
CHIPS |= {"lower": "better", "tie": "same", "higher": "worse"}  # style classes of verdicts
MEANS = {
    "lowest": "lowest of its length",
    "tie": "a tie with the lowest",
    "unclear": "cannot be told from the lowest",
}
FACTS = {
    "T": ("context_length", as_text),
    "tokens": ("tokens", millions),
    "tokens/s": ("tokens_per_second", "{:,.0f}".format),
    "time": ("wall_seconds", "{:,.0f} s".format),
    "peak memory": ("peak_memory_bytes", lambda size: f"{size / 2**20:,.0f} MiB"),
    "training loss": ("final_loss", "{:.3f}".format),
}


def write_page(
    path: Path, runs: Sequence[Run], comparisons: Sequence[Comparison], command: Sequence[str] | None = None
) -> None:
    """Write the page, whole or not at all; the same runs give the same bytes.

    `comparisons` are facets or protocols of `runs`, each a section; `command` is the command line that makes
    the page again. Raises RunError where the file cannot be written or the chart library is not installed.
    """
    write_text_atomic(path, page(runs, comparisons, command or ()))


def page(runs: Sequence[Run], comparisons: Sequence[Comparison], command: Sequence[str]) -> str:
    """Return the document, a function of its arguments."""
    import jinja2
    from markupsafe import Markup

    sheet = _Sheet(runs, comparisons)
    sections = [sheet.section(i) for i in range(len(comparisons))]
    encodings = {row.encoding for one in comparisons for row in one.rows}
    what = f"{len(encodings)} positional encodings" if len(encodings) != 1 else "A positional encoding"
    style = sheet.colors() + _file("page.css")
    scripts = [chart_library(), _file("page.js")]
    made = sheet.made()
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_file("page.html.j2")).render(
        heading=f"{what}: trained short, tested long",
        policy=Markup(POLICY.format(scripts=" ".join(map(_hash, scripts)), styles=_hash(style))),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        specs=[chart["spec"] for section in sections for chart in section["charts"]],
        sections=sections,
        swatches=[(style, SHAPES.get(style.marker, SHAPES["o"])) for _, style in sheet.looks.values()],
        differences=_differences(made),
        settings=[_settings(*one) for one in made],
        unfinished=[run for run in runs if run.state != "finished"],
        runs=_runs_table(runs),
        environment=_environment(runs),
        command=shlex.join(command),
        version=__version__,
        chips=CHIPS,
        marks=MARKS,
        means=MEANS,
    )


@functools.cache
def chart_library() -> str:
    """Return a script that defines `vegaEmbed`. Raises RunError without vl-convert-python.

    Chosen over Bokeh (1.27 MB against 0.90 MB): it draws SVG, so that lines take their colours from the
    page's style sheet in light, dark and print, and its interpreter of expressions needs no `eval`.
    """
    try:
        import vl_convert
    except ImportError as error:
        hint = "pip install vl-convert-python"
        raise RunError(f"the page's charts need vl-convert-python: {error}", hint=hint) from error
    script: str = vl_convert.javascript_bundle(snippet="window.vegaEmbed = vegaEmbed;")
    assert "</script" not in script.lower() and "<!--" not in script, "the library would end its element"
    return script


class _Sheet:
    """What the sections share: a number and a style for each row's name, and which training is drawn."""

    def __init__(self, runs: Sequence[Run], comparisons: Sequence[Comparison]) -> None:
        self.runs = {str(run.path): run for run in runs}
        self.comparisons, self.names = comparisons, Names(comparisons)
        self.titles = [
            one or comparison.header["protocol"]
            for one, comparison in zip(panel_titles(comparisons), comparisons, strict=True)
        ]
        self.looks: dict[str, tuple[int, Style]] = {}
        for row in (row for one in comparisons for row in one.rows):
            self.looks.setdefault(self.names.of(row), (len(self.looks), self.names.style(row)))
        self._trained: set[str] = set()  # runs whose training is drawn

    def colors(self) -> str:
        """Return the style sheet's colours of the rows, for a light and a dark ground."""
        pairs = [f"--s{i}:light-dark({style.color},{style.dark})" for i, style in self.looks.values()]
        return f":root{{{';'.join(pairs)}}}\n"

    def section(self, at: int) -> dict[str, Any]:
        """Return what the section of a comparison shows."""
        comparison = self.comparisons[at]
        charts = context_charts(comparison, self.names, self.looks)
        unseen: list[str] = []
        paths = {path for row in comparison.rows for path in row.runs}
        if not paths <= self._trained:
            self._trained |= paths
            members = [run for path, run in self.runs.items() if path in paths]
            chart, unseen = training_chart(comparison, members, self.names, self.looks)
            charts += [] if chart is None else [chart]
        side = side_table(comparison)
        tables = [self._main(comparison, f"{self.titles[at]}: {comparison.header['unit']}")]
        if side is not None:
            tables.append(self._table(comparison, side, f"{self.titles[at]}: use of context, probes"))
        return {
            "title": self.titles[at],
            "answer": summary_sentence(comparison),
            "about": title(comparison),
            "charts": charts,
            "tables": tables,
            "notes": [*captions(comparison, MARKS), *unseen],
        }

    def _table(self, comparison: Comparison, table: Table, caption: str) -> dict[str, Any]:
        numbers = [self.looks[self.names.of(row)][0] for row in comparison.rows]
        rows = [
            _row(name, [_cell(cell) for cell in cells], number)
            for name, cells, number in zip(table.names, table.cells, numbers, strict=True)
        ]
        return {"caption": caption, "heads": [[table.stub], *table.heads], "rows": rows, "filter": False}

    def _main(self, comparison: Comparison, caption: str) -> dict[str, Any]:
        """Return the losses, sorted by their numbers, and the states of the runs."""
        found = self._table(comparison, main_table(comparison), caption)
        shown = [i for i, column in enumerate(comparison.columns) if column.shown]
        for row, drawn in zip(comparison.rows, found["rows"], strict=True):
            for i, cell in zip(shown, drawn["cells"], strict=True):
                mean = row.cells[i].mean
                cell["value"] = "NaN" if mean is None else "Infinity" if math.isinf(mean) else repr(mean)
            drawn["cells"].append(_cell(_counted(self.runs[path].state for path in row.runs)))
        return found | {"heads": [*found["heads"], ["runs"]], "filter": True}

    def made(self) -> list[tuple[str, int, list[Run]]]:
        """Return the rows with their runs, those as trained first; a row without a new run is left out."""
        seen: set[str] = set()
        found = []
        rows: list[Row] = [row for one in self.comparisons for row in one.rows]
        for row in sorted(rows, key=lambda row: row.extend is not None):
            if not set(row.runs) <= seen:
                runs = [self.runs[path] for path in row.runs]
                found.append((label(row), self.looks[self.names.of(row)][0], runs))
            seen |= set(row.runs)
        return found


# --- what the rows were made with


def _settings_of(run: Run) -> dict[str, str]:
    """Return the resolved configuration, flat; of a run without one, what its results say."""
    facts = {key: (run.facts or {}).get(key) for key in ("encoding", "context_length", "seed") if run.facts}
    return flatten(run.config if run.config is not None else facts)


def _differences(made: Sequence[tuple[str, int, list[Run]]]) -> dict[str, Any] | None:
    """Return a table of the settings in which the rows differ; what only one row has is put together."""
    each = []
    for _, _, runs in made:
        settings = [_settings_of(run) for run in runs]
        keys = sorted({key for one in settings for key in one} - OF_A_RUN)
        each.append({key: ", ".join(sorted({one.get(key, UNSET) for one in settings})) for key in keys})
    keys = [key for key in differing(each) if key != "encoding.name"]
    shared = [key for key in keys if sum(key in one for one in each) > 1]
    if len(made) < 2 or not differing(each):
        return None
    rows = []
    for (name, number, _), one in zip(made, each, strict=True):
        own = ", ".join(f"{key} = {one[key]}" for key in keys if key in one and key not in shared)
        rows.append(
            _row(name, [_cell(own, wide=True), *(_cell(one.get(key, UNSET)) for key in shared)], number)
        )
    heads = [["encoding"], ["settings of its own"], *([key] for key in shared)]
    return {"caption": "Settings in which the rows differ", "heads": heads, "rows": rows, "filter": True}


def _settings(name: str, number: int, runs: Sequence[Run]) -> dict[str, Any]:
    """Return all settings of a row: what its runs share, then what each has for itself."""
    each = [_settings_of(run) for run in runs]
    apart = set(differing(each))
    return {
        "name": name,
        "number": number,
        "runs": len(runs),
        "shared": [f"{key} = {value}" for key, value in sorted(each[0].items()) if key not in apart],
        "own": [
            (run.name, ", ".join(f"{key} = {one.get(key, UNSET)}" for key in sorted(apart)))
            for run, one in zip(runs, each, strict=True)
            if apart
        ],
    }


def _runs_table(runs: Sequence[Run]) -> dict[str, Any]:
    """Return a line for each run: state, seed, speed, what it ended with, why it did not finish."""
    rows = []
    for run in runs:
        cells = [_cell(run.state), _cell("-" if run.seed is None else str(run.seed))]
        for key, text in FACTS.values():
            value = (run.facts or {}).get(key)
            known = isinstance(value, int | float)
            cells.append(_cell(text(value) if known else "-") | ({"value": repr(value)} if known else {}))
        rows.append(_row(run.name, [*cells, _cell(run.reason or "", wide=True)]))
    heads = [["run"], ["status"], ["seed"], *([name] for name in FACTS), ["why"]]
    return {"caption": "Runs", "heads": heads, "rows": rows, "filter": True}


def _environment(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return versions, device, precision and commit; where runs differ, how many have which."""
    values: dict[str, list[str]] = {}
    for run in runs:
        facts: dict[str, Any] = dict(run.facts or {})
        versions = facts.get("versions") or run.status.get("versions")
        found = dict(versions) if isinstance(versions, dict) else {}
        found |= {key: facts.get(key) for key in ("precision", "device")}
        found["commit of posenc"] = run.status.get("git_commit")
        for key, value in found.items():
            if value is not None:
                values.setdefault(str(key), []).append(as_text(value))
    return [(key, _counted(some) if len(set(some)) > 1 else some[0]) for key, some in values.items()]


def _counted(values: Iterable[str]) -> str:
    return ", ".join(f"{number} {value}" for value, number in sorted(Counter(values).items()))


# --- parts


def _row(name: str, cells: list[dict[str, Any]], number: int | None = None) -> dict[str, Any]:
    """`number` is that of the row's style."""
    return {"name": name, "number": number, "cells": cells}


def _cell(content: CellText | str, wide: bool = False) -> dict[str, Any]:
    """`value` is what it is sorted by; without one the number that the text begins with."""
    lines, mark = ([content], None) if isinstance(content, str) else (content.lines, content.mark)
    return {"lines": lines, "mark": mark, "wide": wide, "value": None}


def _file(name: str) -> str:
    return files("posenc.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
