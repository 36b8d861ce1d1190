"""`posenc compare`: runs from disk to a table, a picture, a page."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import output_file
from posenc.report.captions import EXPLAIN
from posenc.report.charts import KIND, PLOTS, WIDTH, check_plot, save_plot
from posenc.report.data import csv_lines
from posenc.report.runs_table import unfinished_lines
from posenc.report.writers import FORMATS, show, write
from posenc.results.cells import PROBES
from posenc.results.comparison import ALL, CompareRequest, Comparison, compare_runs, protocols_of
from posenc.results.frame import documents_table, seeds_table
from posenc.results.load import Run, load_runs
from posenc.results.rows import only, parse_multiple
from posenc.results.schema import HEADLINE, METRICS, REFERENCE_PROTOCOL, Metric
from posenc.results.settings import where

OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")  # commas; a row of a mixed table has some in its name


def run_compare(options: SimpleNamespace) -> None:
    """Read, compare, write; `options` are the command's, None where one is not given. Raises UserError."""
    if options.explain:
        write(EXPLAIN, sys.stdout)
        return
    request = _request(options)
    runs = _runs(options)
    if options.against is not None:
        _against(options, runs)
    else:
        found = compare_runs(runs, request)
        if options.per is None or options.per == "cell":
            every = bool(options.columns)
            show(found, options.format, sys.stdout, runs=runs, full=options.full, every=every)
        else:
            lines = seeds_table if options.per == "seed" else documents_table
            write(csv_lines(lines(runs, request)), sys.stdout)
        if options.plot is not None:
            save_plot(Path(options.plot), options.plot_kind or KIND, runs, found, options.plot_width or WIDTH)
            say(f"wrote {options.plot}")
        if options.html is not None:
            from posenc.report.page import write_page

            page = output_file("--html", options.html)
            others = [] if options.facet else _others(runs, request)
            write_page(page, runs, [*found, *others], ["posenc", *sys.argv[1:]])
            say(f"wrote {options.html}")
    for line in unfinished_lines(runs):
        say(line)


def _request(options: SimpleNamespace) -> CompareRequest:
    """Return what is compared; refuse whatever can be seen to be wrong before runs are read."""
    for option, value, allowed in (
        ("--format", options.format, list(FORMATS)),
        ("--per", options.per, ["cell", "seed", "document"]),
        ("--metric", options.metric, list(METRICS)),
        ("--extensions", options.extensions, ["rows", "columns"]),
        ("--plot-kind", options.plot_kind, list(PLOTS)),
    ):
        if value is not None and value not in allowed:
            raise UserError(option, value, "no such choice", allowed=allowed)
    if options.metric == "ppl" and options.baseline is not None:
        raise UserError("--baseline", options.baseline, "perplexities are not compared", allowed="nats, bpb")
    if options.plot is not None:
        width = WIDTH if options.plot_width is None else options.plot_width
        check_plot(Path(options.plot), options.plot_kind or KIND, width)
    needs = {"--plot-kind": options.plot_kind, "--plot-width": options.plot_width}
    for option, given in needs.items():
        if given is not None and options.plot is None:
            raise UserError(option, given, "there is no picture to make", hint="--plot FILE")
    if options.per is not None and options.format != "csv":
        raise UserError("--per", options.per, "is for --format csv")
    if options.html is not None:
        if not options.html.lower().endswith((".html", ".htm")):
            raise UserError("--html", options.html, "its ending must say what it is", allowed=".html")
        output_file("--html", options.html)
    return CompareRequest(
        protocol=options.protocol,
        metric=cast("Metric", options.metric),
        rows=_listed("--rows", options.rows),
        columns=[parse_multiple(text, "--columns") for text in _listed("--columns", options.columns)],
        sort=options.sort,
        baseline=options.baseline,
        facet=options.facet,
        extensions="columns" if options.extensions == "columns" else "rows",
        allow_mixed=options.allow_mixed,
    )


def _runs(options: SimpleNamespace) -> list[Run]:
    everything = options.protocol == ALL or options.plot or options.html or options.against or options.per
    protocols = None if everything else {options.protocol, HEADLINE, "positions", REFERENCE_PROTOCOL, *PROBES}
    runs = load_runs(options.runs or ["runs"], protocols)
    gc.freeze()  # thousands of records that stay: searching them for cycles again and again takes seconds
    if options.where:
        runs = where(runs, options.where)
    named = options.against is None and options.protocol in protocols_of(runs)
    return only(
        runs,
        length=None if options.length is None else parse_multiple(options.length),
        corpus=options.corpus,
        split=options.split,
        stride=options.stride,
        protocol=options.protocol if named else None,
    )


def _against(options: SimpleNamespace, runs: Sequence[Run]) -> None:
    """Show the runs beside a paper's table, which decides protocol, unit and rows."""
    from posenc.report.against import show_against
    from posenc.results.against import against

    assert options.against is not None
    if (options.protocol, options.metric) != (HEADLINE, "nats"):
        raise UserError("--against", options.against, "chooses protocol and unit by the paper's table itself")
    for name in ("plot", "html", "rows", "columns", "sort", "baseline", "facet", "per", "full"):
        if getattr(options, name):
            raise UserError(f"--{name}", None, "does not go together with --against")
    show_against(against(runs, options.against), options.format, sys.stdout)


def _others(runs: Sequence[Run], request: CompareRequest) -> list[Comparison]:
    """Return the other protocols' tables, for the page: with the rows of the first, not its columns."""
    if request.protocol == ALL:
        return []
    plain = CompareRequest(ALL, request.metric, rows=request.rows, allow_mixed=request.allow_mixed)
    skip = (request.protocol, *PROBES)
    return [one for one in compare_runs(runs, plain) if one.header["protocol"] not in skip]


def _listed(option: str, texts: Sequence[str] | None) -> list[str]:
    found = [part.strip() for text in texts or [] for part in OUTSIDE_BRACKETS.split(text)]
    if "" in found:
        raise UserError(option, ",".join(texts or []), "an empty name is none")
    return found
