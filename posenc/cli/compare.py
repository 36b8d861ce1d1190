"""`posenc compare`: runs from disk to a table, a picture, a page."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import output_file
from posenc.report.charts import KIND, KINDS, check_plot, save_plot
from posenc.report.explain import explain
from posenc.report.formats import render
from posenc.report.runs_table import unfinished_lines
from posenc.report.terminal import has_color, terminal_width, write
from posenc.results.comparison import ALL, CompareRequest, Comparison, compare_runs
from posenc.results.load import Run, load_runs
from posenc.results.schema import RECALL
from posenc.results.settings import where

OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")  # commas; a row of a mixed table has some in its name


@dataclass(frozen=True)
class Output:
    """How a comparison is written."""

    format: str
    full: bool
    explain: bool  # the rules instead of a table
    against: str | None  # a paper's table
    plot: str | None
    plot_kind: str | None
    html: str | None


def run_compare(
    paths: Sequence[str],
    conditions: Sequence[str],
    request: CompareRequest,
    output: Output,
) -> None:
    """Read the runs below `paths` that fit the conditions, compare, write. Raises UserError."""
    if output.explain:
        write(explain(), sys.stdout)
        return
    _check(request, output)
    runs = load_runs(paths)
    gc.freeze()  # thousands of records that stay: searching them for cycles again and again takes seconds
    if conditions:
        runs = where(runs, conditions)
    if output.against is not None:
        from posenc.report.against import show_against
        from posenc.results.published import against

        show_against(against(runs, output.against), output.format, sys.stdout)
    else:
        _write(runs, request, output)
    for line in unfinished_lines(runs):
        say(line)


def _check(request: CompareRequest, output: Output) -> None:
    """Refuse whatever can be seen to be wrong before runs are read."""
    if output.against is not None:
        plain, own = CompareRequest(), ("full", "plot", "plot_kind", "html")
        unread = [
            one.name for one in fields(request) if getattr(request, one.name) != getattr(plain, one.name)
        ]
        if unread := unread + [name for name in own if getattr(output, name)]:
            problem = f"does not read --{unread[0].replace('_', '-')}"
            hint = "leave it out; --where and --format are read"
            raise UserError("--against", output.against, problem, hint=hint)
    if request.metric == "ppl" and request.baseline is not None:
        raise UserError("--baseline", request.baseline, "perplexities are not compared", allowed="nats, bpb")
    if output.plot is not None:
        check_plot(Path(output.plot), output.plot_kind or KINDS.get(request.protocol, KIND))
    elif output.plot_kind is not None:
        raise UserError("--plot-kind", output.plot_kind, "there is no picture to make", hint="--plot FILE")
    if output.html is not None:
        if not output.html.lower().endswith((".html", ".htm")):
            raise UserError("--html", output.html, "is not the name of a page", allowed=".html")
        output_file("--html", output.html)


def _write(runs: Sequence[Run], request: CompareRequest, output: Output) -> None:
    """Print the comparison; write picture and page."""
    found = compare_runs(runs, request)
    how = {"full": output.full, "every": bool(request.columns)}
    write(render(found, output.format, terminal_width(), has_color(sys.stdout), **how), sys.stdout)
    if output.plot is not None:
        save_plot(Path(output.plot), output.plot_kind or KINDS.get(request.protocol, KIND), found)
        say(f"wrote {output.plot}")
    if output.html is not None:
        from posenc.report.page import write_page

        page = output_file("--html", output.html)
        write_page(page, [*found, *_others(runs, request)], ["posenc", *sys.argv[1:]])
        say(f"wrote {output.html}")


def _others(runs: Sequence[Run], request: CompareRequest) -> list[Comparison]:
    """Return the other protocols' tables, for the page: with the rows of the first, not its columns."""
    if request.protocol == ALL:
        return []
    plain = CompareRequest(ALL, request.metric, rows=request.rows, allow_mixed=request.allow_mixed)
    skip = (request.protocol, RECALL)  # which is beside the headline
    return [one for one in compare_runs(runs, plain) if one.header.protocol not in skip]


def listed(option: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Split `a,b` of an option that may be given several times. Raises UserError for an empty name."""
    found = tuple(part.strip() for text in texts or [] for part in OUTSIDE_BRACKETS.split(text))
    if "" in found:
        raise UserError(option, ",".join(texts or []), "a name is empty")
    return found
