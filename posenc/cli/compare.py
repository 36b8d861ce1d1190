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
from posenc.core.errors import UserError
from posenc.core.paths import output_file
from posenc.report.plots import KIND, PLOTS, WIDTH, check_plot, save_plot
from posenc.report.runs_table import failures_lines
from posenc.report.writers import FORMATS, show
from posenc.results.cells import PROBES
from posenc.results.comparison import Comparison, View, compare_facets, metric_for, protocols_of, tables_of
from posenc.results.load import Run, load_runs
from posenc.results.rows import only, parse_multiple
from posenc.results.schema import HEADLINE, METRICS, REFERENCE_PROTOCOL, Metric
from posenc.results.settings import where

OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")  # commas; a row of a mixed table has some in its name


@dataclass(frozen=True)
class CompareOptions:
    """The options of the command; None where one is not given."""

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


def run_compare(options: CompareOptions) -> None:
    """Read, compare, write. Raises UserError."""
    view = _view(options)
    runs = _runs(options)
    if options.against is not None:
        _against(options, runs)
    else:
        metric = cast("Metric", options.metric)
        found = compare_facets(runs, options.facet, options.protocol, metric, options.allow_mixed, view)
        show(found, options.format, sys.stdout)
        if options.plot is not None:
            kind, width = _plot(options)
            save_plot(Path(options.plot), kind, runs, found, width)
            say(f"wrote {options.plot}")
        if options.html is not None:
            from posenc.report.page import write_page

            page = output_file("--html", options.html)
            write_page(page, runs, [*found, *_others(options, runs, view)], ["posenc", *sys.argv[1:]])
            say(f"wrote {options.html}")
    for line in failures_lines(runs):
        say(line)


def _view(options: CompareOptions) -> View:
    """Return what is shown; refuse whatever can be seen to be wrong before runs are read."""
    for option, value, allowed in (
        ("--format", options.format, list(FORMATS)),
        ("--metric", options.metric, list(METRICS)),
        ("--extensions", options.extensions, ["rows", "columns"]),
        ("--plot-kind", options.plot_kind, list(PLOTS)),
    ):
        if value is not None and value not in allowed:
            raise UserError(option, value, "no such choice", allowed=allowed)
    if options.stride is not None and options.stride < 1:
        raise UserError("--stride", options.stride, "not a stride", allowed="tokens, from 1")
    if options.metric == "ppl" and options.baseline is not None:
        raise UserError("--baseline", options.baseline, "perplexities are not compared", allowed="nats, bpb")
    if options.plot is not None:
        check_plot(Path(options.plot), *_plot(options))
    for option, given in {"--plot-kind": options.plot_kind, "--plot-width": options.plot_width}.items():
        if given is not None and options.plot is None:
            raise UserError(option, given, "there is no picture to make", hint="--plot FILE")
    if options.html is not None:
        if not options.html.lower().endswith((".html", ".htm")):
            raise UserError("--html", options.html, "its ending must say what it is", allowed=".html")
        output_file("--html", options.html)
    return View(
        rows=_listed("--rows", options.rows),
        columns=[parse_multiple(text, "--columns") for text in _listed("--columns", options.columns)],
        sort=options.sort,
        baseline=options.baseline,
        extensions="columns" if options.extensions == "columns" else "rows",
    )


def _plot(options: CompareOptions) -> tuple[str, float]:
    """Return kind and width of the picture."""
    return options.plot_kind or KIND, WIDTH if options.plot_width is None else options.plot_width


def _runs(options: CompareOptions) -> list[Run]:
    everything = options.plot is not None or options.html is not None or options.against is not None
    protocols = None if everything else {options.protocol, REFERENCE_PROTOCOL, *PROBES}
    runs = load_runs(options.runs or ["runs"], protocols)
    gc.freeze()  # thousands of records that stay: searching them for cycles again and again takes seconds
    if options.where:
        runs = where(runs, options.where)
    multiple = None if options.length is None else parse_multiple(options.length)
    protocol = (
        options.protocol if options.against is None and options.protocol in protocols_of(runs) else None
    )
    return only(
        runs,
        length=multiple,
        corpus=options.corpus,
        split=options.split,
        stride=options.stride,
        protocol=protocol,
    )


def _against(options: CompareOptions, runs: Sequence[Run]) -> None:
    """Show the runs beside a paper's table, which decides protocol, unit and rows."""
    from posenc.report.against import show_against
    from posenc.results.against import against

    assert options.against is not None
    if (options.protocol, options.metric) != (HEADLINE, "nats"):
        raise UserError("--against", options.against, "chooses protocol and unit by the paper's table itself")
    for name in ("plot", "html", "rows", "columns", "sort", "baseline", "facet"):
        if getattr(options, name):
            raise UserError(f"--{name}", None, "does not go together with --against")
    if options.extensions != "rows":
        raise UserError("--extensions", options.extensions, "does not go together with --against")
    show_against(against(runs, options.against), options.format, sys.stdout)


def _others(options: CompareOptions, runs: Sequence[Run], view: View) -> list[Comparison]:
    """Return the other protocols' tables, for the page: with the rows, not the columns, of the first."""
    others = [name for name in tables_of(runs) if name != options.protocol]
    if options.facet is not None:
        if others:
            say(f"not on the page: {', '.join(others)} (with --facet one protocol, see --protocol)")
        return []
    plain = View(rows=view.rows)
    metric = cast("Metric", options.metric)
    found = []
    for name in others:
        chosen = metric_for(runs, name, metric)
        try:
            found += compare_facets(runs, None, name, chosen, options.allow_mixed, plain)
        except UserError as error:  # nobody options for this one: the page is made without it
            say(f"not on the page: {name} ({' '.join(error.problem.split())})")
    return found


def _listed(option: str, texts: Sequence[str] | None) -> list[str]:
    found = [part.strip() for text in texts or [] for part in OUTSIDE_BRACKETS.split(text)]
    if "" in found:
        raise UserError(option, ",".join(texts or []), "an empty name is none")
    return found
