"""Run `posenc compare`: read runs from disk, and write a table, a picture or a page."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

from posenc.cli.compare_files import FileOptions, check_files, draw, say_what_is_replaced, write_files
from posenc.core.console import say, terminal_width, write
from posenc.core.errors import UserError, suggestion
from posenc.core.garbage import without_garbage_collector
from posenc.report.explain import rules_of_tables
from posenc.report.figure import renamed
from posenc.report.formats import render
from posenc.report.protocol_words import check_protocol
from posenc.report.runs_table import unfinished_lines
from posenc.report.terminal import has_color
from posenc.results.beside.recall import RECALL
from posenc.results.comparison import Comparison, compare_runs
from posenc.results.discovery import load_runs, paths_and_encodings
from posenc.results.drafts import ALL_PROTOCOLS, CompareRequest, suited_to_tasks
from posenc.results.runs import Run
from posenc.results.where import matching_runs

COMMA = re.compile(r",(?![^\[]*\])")  # outside brackets: the name of a row of mixed runs has some inside


@dataclass(frozen=True)
class Output:
    """Hold how a comparison is written."""

    format: str
    full: bool
    explain: bool  # the rules instead of a table
    against: str | None  # the name of a paper's table
    labels: Sequence[str]  # NAME=TEXT: what rows are called
    files: FileOptions


# To read 2,000 runs, the search for cycles took 1.1 of 6.0 s (posenc.core.garbage).
@without_garbage_collector()
def run_compare(
    paths: Sequence[str], conditions: Sequence[str], request: CompareRequest, output: Output
) -> None:
    """Read the runs below `paths` that meet the conditions, compare them, and write. Raises UserError."""
    # The rules are the same for all runs, so none is read.
    if output.explain:
        _check_explain(conditions, request, output)
        write(rules_of_tables(), sys.stdout)
        return
    if output.against is not None:
        _check_against(output.against, request, output)
    check_files(output.files, request.protocol)  # before anything is read
    runs = _chosen_runs(paths, conditions)
    request = suited_to_tasks(runs, request)
    outputs = check_files(output.files, request.protocol)  # a picture of tasks is of another kind
    if output.against is not None:
        # Only `--against` needs the papers' numbers, which are read with this import.
        from posenc.report.against import show_against
        from posenc.results.published import against

        show_against(against(runs, output.against), output.format, sys.stdout)
    else:
        check_protocol(request.protocol, runs)
        comparisons = compare_runs(runs, request)
        named_comparisons = renamed(comparisons, output.labels)
        # A picture that cannot be drawn is refused before the table is printed.
        drawing = draw(outputs, named_comparisons)
        _print(named_comparisons, request, output)
        # The page compares the runs by every other protocol too, so it is made only where a file needs it.
        # It takes rows by their own names, and renames those of all protocols at once.
        write_files(
            outputs,
            named_comparisons,
            drawing,
            make_page=lambda: _page(comparisons, runs, request, output),
            full=output.full,
            with_short_lengths=bool(request.columns),
        )
    # These lines go to stderr, so that a table in a file has rows alone.
    for line in unfinished_lines(runs):
        say(line)


def _chosen_runs(paths: Sequence[str], conditions: Sequence[str]) -> list[Run]:
    """Return the runs below `paths` that meet the conditions. Names of encodings may be among the paths.

    Raises UserError.
    """
    directories, encodings = paths_and_encodings(paths)
    runs = load_runs(directories)
    if encodings:
        runs = matching_runs(runs, [f"encoding={','.join(encodings)}"])
    for encoding in encodings:
        # A missing encoding is no error: the others are still compared.
        if all(run.encoding != encoding for run in runs):
            say(f"{encoding}: there is no run of it")
    return matching_runs(runs, conditions) if conditions else runs


def split_list(option: str, texts: Sequence[str] | None) -> tuple[str, ...]:
    """Split `a,b` of an option that may be given several times. Raises UserError for an empty name."""
    names: list[str] = []
    for text in texts or []:
        names += [name.strip() for name in COMMA.split(text)]
    if "" in names:
        raise _empty_name(option, texts or [], [name for name in names if name])
    return tuple(names)


def _empty_name(option: str, texts: Sequence[str], names: Sequence[str]) -> UserError:
    """Return the error for a list with an empty name, with the line that was meant."""
    hint = f"{option} a,b"
    if names:
        hint = suggestion(f"{option} {shlex.quote(','.join(names))}")
    for text in texts:
        following = _word_behind(text)
        if text.endswith(",") and following is not None:
            hint = f"no space behind a comma: {option} {shlex.quote(text + following)}"
    return UserError(option, ",".join(texts), "a name is empty", hint=hint)


def _word_behind(text: str) -> str | None:
    """Return the word that was typed behind an option's text; None if an option follows, or nothing."""
    # Typer has taken the word for a folder, and no longer says where it stood.
    for typed, following in itertools.pairwise(sys.argv):
        is_text = typed == text or typed.endswith(f"={text}")
        if is_text and not following.startswith("-"):
            return following
    return None


# --- before the comparison


def _check_explain(conditions: Sequence[str], request: CompareRequest, output: Output) -> None:
    """Raise UserError for an option that has no effect on the rules: on a file, a table, or which runs."""
    unread = _changed_options(request, output)
    if output.format != "table":
        unread.append("format")
    if conditions:
        unread.append("where")
    if output.against is not None:
        unread.append("against")
    if unread:
        problem = f"the rules are printed, so --{unread[0]} has no effect"
        raise UserError("--explain", None, problem, hint="posenc compare --explain > FILE")


def _check_against(table: str, request: CompareRequest, output: Output) -> None:
    """Raise UserError for an option that has no effect on a comparison with a paper's table."""
    unread = _changed_options(request, output)  # it is printed, and has no files
    if unread:
        problem = f"does not read --{unread[0]}"
        raise UserError("--against", table, problem, hint="leave it out; --where and --format are read")


def _changed_options(request: CompareRequest, output: Output) -> list[str]:
    """Return the options of a comparison, of its table and of files that differ from their defaults."""
    default = CompareRequest()
    # Which options were typed is not known here. What differs from the default was.
    names = [field.name for field in fields(request)]
    changed = [name for name in names if getattr(request, name) != getattr(default, name)]
    changed += [name for name in ("full", "labels") if getattr(output, name)]
    changed += [field.name for field in fields(output.files) if getattr(output.files, field.name)]
    return [name.replace("_", "-") for name in changed]


# --- output


def _print(comparisons: Sequence[Comparison], request: CompareRequest, output: Output) -> None:
    text = render(
        comparisons,
        output.format,
        terminal_width(),
        has_color(sys.stdout),
        full=output.full,
        with_short_lengths=bool(request.columns),
    )
    write(text, sys.stdout)
    say_what_is_replaced(text, output.format)


def _page(
    comparisons: Sequence[Comparison], runs: Sequence[Run], request: CompareRequest, output: Output
) -> str:
    """Return the page: the requested comparison, then those by the other protocols."""
    # The page embeds the JavaScript of Vega, 0.9 MB, which a table in a terminal does not need.
    from posenc.report.page import page

    others = _other_protocols(runs, request)
    kinds_beside = _kinds_beside_losses([*comparisons, *others])
    all_comparisons = [*comparisons]
    for comparison in others:
        # The tables of losses have recall in them, of the plants of the training alone.
        recall = RECALL.of_table(comparison)
        is_recall = comparison.header.protocol == RECALL.protocol
        if not is_recall or (recall is not None and recall.kind not in kinds_beside):
            all_comparisons.append(comparison)
    # The page names the command that made it, so that it can be made again.
    return page(renamed(all_comparisons, output.labels), ["posenc", *sys.argv[1:]])


def _other_protocols(runs: Sequence[Run], request: CompareRequest) -> list[Comparison]:
    """Return the comparisons by the other protocols, with the same rows and all lengths."""
    if request.protocol == ALL_PROTOCOLS:
        return []
    # Columns and sorting of the first table are left out, since they may not exist for another protocol.
    request_for_all = CompareRequest(
        ALL_PROTOCOLS, request.metric, rows=request.rows, allow_mixed=request.allow_mixed
    )
    return [
        comparison
        for comparison in compare_runs(runs, request_for_all)
        if comparison.header.protocol != request.protocol
    ]


def _kinds_beside_losses(comparisons: Sequence[Comparison]) -> set[str | None]:
    """Return the kinds of plants whose recall stands beside losses; None is that of older records."""
    tables = [RECALL.of_table(table) for table in comparisons if table.header.protocol != RECALL.protocol]
    return {recall.kind for recall in tables if recall is not None}
