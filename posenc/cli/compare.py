"""`posenc compare`: runs from disk to a table, a picture, a page."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.failures import failures_lines
from posenc.report.plots import KIND, PLOTS, WIDTH, check_plot, save_plot
from posenc.report.table import FORMATS, show
from posenc.results.comparison import Comparison, metric_for, protocols_of, tables_of
from posenc.results.facets import compare_facets
from posenc.results.filters import where
from posenc.results.load import Run, load_runs
from posenc.results.probes import PROBES
from posenc.results.records import HEADLINE, METRICS, REFERENCE_PROTOCOL, Metric
from posenc.results.selection import only, parse_multiple
from posenc.results.view import View

OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")  # commas; a row of a mixed table has some in its name


@dataclass(frozen=True)
class CompareOptions:
    """The options of the command; None and empty where nothing was asked for."""

    runs: Sequence[str] | None
    where: Sequence[str] | None
    protocol: str
    metric: str
    format: str
    rows: Sequence[str] | None
    columns: Sequence[str] | None
    sort: str | None
    baseline: str | None
    facet: str | None
    extensions: str
    length: str | None
    corpus: str | None
    split: str | None
    stride: int | None
    allow_mixed: bool
    against: str | None
    plot: str | None
    plot_kind: str | None
    plot_width: float | None
    html: str | None


def run_compare(asked: CompareOptions) -> None:
    """Read, compare, write. Raises UserError."""
    view = _view(asked)
    runs = _runs(asked)
    if asked.against is not None:
        _against(asked, runs)
    else:
        metric = cast("Metric", asked.metric)
        comparisons = compare_facets(runs, asked.facet, asked.protocol, metric, asked.allow_mixed, view)
        show(comparisons, asked.format, sys.stdout)
        if asked.plot is not None:
            kind, width = _plot(asked)
            save_plot(Path(asked.plot), kind, runs, comparisons, width)
            say(f"wrote {visible(asked.plot)}")
        if asked.html is not None:
            from posenc.report.page import write_page

            shown = [*comparisons, *_others(asked, runs, view)]
            write_page(output_file("--html", asked.html), runs, shown, ["posenc", *sys.argv[1:]])
            say(f"wrote {visible(asked.html)}")
    for line in failures_lines(runs):
        say(line)


def _view(asked: CompareOptions) -> View:
    """What is shown; whatever can be seen to be wrong before runs are read is refused here."""
    for option, value, allowed in (
        ("--format", asked.format, list(FORMATS)),
        ("--metric", asked.metric, list(METRICS)),
        ("--extensions", asked.extensions, ["rows", "columns"]),
        ("--plot-kind", asked.plot_kind, list(PLOTS)),
    ):
        if value is not None and value not in allowed:
            raise UserError(option, visible(value), "no such choice", allowed=allowed)
    if asked.stride is not None and asked.stride < 1:
        raise UserError("--stride", asked.stride, "not a stride", allowed="tokens, from 1")
    if asked.metric == "ppl" and asked.baseline is not None:
        raise UserError(
            "--baseline", visible(asked.baseline), "perplexities are not compared", allowed="nats, bpb"
        )
    if asked.plot is not None:
        check_plot(Path(asked.plot), *_plot(asked))
    of_plot = {"--plot-kind": asked.plot_kind, "--plot-width": asked.plot_width}
    for option, given in of_plot.items():
        if given is not None and asked.plot is None:
            raise UserError(option, given, "there is no picture to make", hint="--plot FILE")
    if asked.html is not None:
        if not asked.html.lower().endswith((".html", ".htm")):
            raise UserError("--html", visible(asked.html), "its ending must say what it is", allowed=".html")
        output_file("--html", asked.html)
    return View(
        rows=_listed("--rows", asked.rows),
        columns=[parse_multiple(text, "--columns") for text in _listed("--columns", asked.columns)],
        sort=asked.sort,
        baseline=asked.baseline,
        extensions="columns" if asked.extensions == "columns" else "rows",
    )


def _plot(asked: CompareOptions) -> tuple[str, float]:
    """Kind and width of the picture."""
    return asked.plot_kind or KIND, WIDTH if asked.plot_width is None else asked.plot_width


def _runs(asked: CompareOptions) -> list[Run]:
    everything = asked.plot is not None or asked.html is not None or asked.against is not None
    protocols = None if everything else {asked.protocol, REFERENCE_PROTOCOL, *PROBES}
    runs = load_runs(asked.runs or ["runs"], protocols)
    gc.freeze()  # thousands of records that stay: searching them for cycles again and again takes seconds
    if asked.where:
        runs = where(runs, asked.where)
    multiple = None if asked.length is None else parse_multiple(asked.length)
    protocol = asked.protocol if asked.against is None and asked.protocol in protocols_of(runs) else None
    return only(
        runs, length=multiple, corpus=asked.corpus, split=asked.split, stride=asked.stride, protocol=protocol
    )


def _against(asked: CompareOptions, runs: Sequence[Run]) -> None:
    """Beside a paper's table, which brings protocol, unit and rows with it."""
    from posenc.report.against import show_against
    from posenc.results.against import against

    assert asked.against is not None
    free = ("plot", "html", "rows", "columns", "sort", "baseline", "facet")
    if (asked.protocol, asked.metric) != (HEADLINE, "nats"):
        raise UserError("--against", asked.against, "chooses protocol and unit by the paper's table itself")
    for name in free:
        if getattr(asked, name):
            raise UserError(f"--{name}", None, "does not go together with --against")
    if asked.extensions != "rows":
        raise UserError("--extensions", asked.extensions, "does not go together with --against")
    show_against(against(runs, asked.against, asked.allow_mixed), asked.format, sys.stdout)


def _others(asked: CompareOptions, runs: Sequence[Run], view: View) -> list[Comparison]:
    """For the page: the other protocols, too, without the choice of columns, which was made for the first."""
    others = [name for name in tables_of(runs) if name != asked.protocol]
    if asked.facet is not None:
        if others:
            say(f"not on the page: {', '.join(others)} (with --facet one protocol, see --protocol)")
        return []
    plain = View(rows=view.rows)
    metric = cast("Metric", asked.metric)
    found = []
    for name in others:
        chosen = metric_for(runs, name, metric)
        try:
            found += compare_facets(runs, None, name, chosen, asked.allow_mixed, plain)
        except UserError as error:  # nobody asked for this one: the page is made without it
            say(f"not on the page: {name} ({' '.join(error.problem.split())})")
    return found


def _listed(option: str, texts: Sequence[str] | None) -> list[str]:
    found = [part.strip() for text in texts or [] for part in OUTSIDE_BRACKETS.split(text)]
    if "" in found:
        raise UserError(option, visible(",".join(texts or [])), "an empty name is none")
    return found
