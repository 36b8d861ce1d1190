"""Print what a training or an evaluation found, in one screen, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from posenc.core.console import terminal_width, write
from posenc.core.paths import choice_files
from posenc.report.parts import protocols_with_tables, tables_of_parts
from posenc.report.reports import short_report
from posenc.report.sentences.shared import has_unigram_reference
from posenc.report.tables import Table
from posenc.report.terminal import has_color, terminal_text
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest, protocols_of
from posenc.results.records import HEADLINE
from posenc.results.runs import Run, resume_command
from posenc.settings.tree import RunSettings

COMMAND_START = len("next   ")  # columns before the command
LONGER_TRAINING = 10  # times as many tokens; a round number, since nothing tells how many are enough


def show_runs(runs: Sequence[Run], stream: TextIO, saved: Path | None = None) -> None:
    """Print what the runs of a command found: one screen with an answer, a table, and what to type next.

    `saved` is the run directory of a single run. Without it, after a sweep, neither a directory nor a next
    command is printed. Runs of several settings (a sweep over T) have a table each.
    """
    protocols = protocols_of(runs)
    shown_protocol = protocols[0] if protocols else HEADLINE  # the headline is first if it was measured
    width = terminal_width()
    comparisons = compare_runs(runs, CompareRequest(shown_protocol))
    reports = [short_report(comparison) for comparison in comparisons]
    # What follows belongs to all tables, so it stands below the last one.
    for protocol in protocols[1:]:
        # The other protocols have columns in the table of losses, or a table that --protocol all shows.
        if protocol in protocols_with_tables():
            tables = _tables_of_protocol(runs, protocol)
            reports[-1] = replace(reports[-1], tables=[*reports[-1].tables, *tables])
    if saved is not None:
        # More training on the same text does not help a model to read another one.
        can_train_longer = any(
            row.undertrained and not has_unigram_reference(comparison.header)
            for comparison in comparisons
            for row in comparison.rows
        )
        command = next_command(runs[0], saved, can_train_longer, width)
        reports[-1] = replace(reports[-1], tail=[f"saved  {saved}", f"next   {command}"])
    write(terminal_text(reports, width, has_color(stream)), stream)


def _tables_of_protocol(runs: Sequence[Run], protocol: str) -> list[Table]:
    """Return the tables of a protocol that is not the first one measured, for the end of its report."""
    tables = []
    for comparison in compare_runs(runs, CompareRequest(protocol)):
        tables += tables_of_parts(comparison.rows)
    return tables


def next_command(run: Run, saved: Path, can_train_longer: bool, width: int) -> str:
    """Return what to type after a run.

    An undertrained run can be trained longer. Otherwise it is the same command with three seeds, and with a
    second encoding where it names one. Where the run does not know its command, or that would be wider than
    the screen, it is the comparison of all runs beside this one.
    """
    tokens = _trained_tokens(run)
    if can_train_longer and tokens is not None:
        return f"train longer: train.tokens={LONGER_TRAINING * tokens} (now {tokens})"
    runs_dir = saved.parent.parent  # of RUNS_DIR/EXPERIMENT/RUN
    compare = shlex.join(["posenc", "compare", str(runs_dir)])
    command = resume_command(run)
    if command is None:
        return compare
    program, train, *overrides = shlex.split(command)
    # The new command names its own seeds, and Hydra refuses a key that is given twice.
    overrides = [override for override in overrides if not override.startswith("seed=")]
    has_parameters = any(override.startswith("encoding.") for override in overrides)
    if not has_parameters:  # another encoding would refuse them
        overrides = _with_second_encoding(overrides)
    sweep = shlex.join([program, train, "-m", *overrides, "seed=0,1,2"])
    # A command that is broken over two lines cannot be copied in one go.
    fits = COMMAND_START + len(sweep) <= width
    return sweep if fits else compare


def _with_second_encoding(overrides: Sequence[str]) -> list[str]:
    """Return overrides in which `encoding=rope` is `encoding=rope,alibi`: the first other name there is."""
    names = sorted(choice_files("encoding"))
    second = next(name for name in names if f"encoding={name}" not in overrides)
    extended = []
    for override in overrides:
        is_encoding = override.startswith("encoding=")
        extended.append(f"{override},{second}" if is_encoding else override)
    return extended


def _trained_tokens(run: Run) -> int | None:
    """Return the tokens that the run was to be trained on; None for a model that posenc did not train."""
    return run.settings.train.tokens if isinstance(run.settings, RunSettings) else None
