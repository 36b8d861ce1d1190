"""`posenc train` and `posenc eval`: their help, `--cfg` and the like, a dry run, or the jobs."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from posenc.config.overrides import chosen_settings, command_tree, config_dir_of, groups
from posenc.core.errors import UserError
from posenc.core.machine import load_meter
from posenc.core.paths import choice_files
from posenc.report.writers import terminal_width, write

if TYPE_CHECKING:
    from posenc.config.compose import Jobs
    from posenc.config.overrides import CommandLine
    from posenc.running.invocation import Invocation

WIDEST = 100  # columns of the help
COLUMN = 34  # where comments begin at the latest, but for those of longer settings


def run_train_or_eval(
    command: str,
    arguments: list[str],
    own_flags: Collection[str],
    invocation: Invocation,
    *,
    dry_run: bool = False,
) -> int:
    """Return the exit code of `posenc train ...` or `posenc eval ...`. Raises UserError, RunError.

    Under torchrun each process comes here with the same arguments.
    """
    if {"--help", "-h"} & set(arguments):
        write(help_text(command, arguments, min(WIDEST, terminal_width())), sys.stdout)
        return 0
    load_meter()  # begins: from here to the first step
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse
    from posenc.training.distributed import run_distributed

    line = parse(arguments, command, own_flags)
    if os.environ.get("RANK", "0") != "0" and (line.asks_hydra or dry_run or command == "eval"):
        return 0  # of several processes of torchrun the first one answers, or measures
    if line.asks_hydra:
        return _answer(command, line)
    if dry_run:
        from posenc.cli.dry_run import print_dry_run

        return print_dry_run(compose_jobs(command, line), retry=invocation.retry)
    if command == "eval":
        return run_jobs(command, line, compose_jobs(command, line), invocation)
    return run_distributed(lambda: run_jobs(command, line, compose_jobs(command, line), invocation))


def _answer(command: str, line: CommandLine) -> int:
    """Print what Hydra's own flags ask for."""
    from posenc.config.compose import compose_jobs, search_path, with_file
    from posenc.config.hydra_adapter import print_answer

    if {"--cfg", "-c"} & {flag.partition("=")[0] for flag in line.flags}:
        compose_jobs(command, line)  # wrong input is refused in posenc's words here too
    # Hydra's parser wants all overrides before the flags, or behind them
    print_answer(command, [*line.flags, *search_path(), *with_file(line.overrides)])
    return 0


def run_jobs(command: str, line: CommandLine, composed: Jobs, invocation: Invocation) -> int:
    """Validate all jobs, then run them; return the exit code. Raises UserError, RunError."""
    from hydra.core.utils import configure_log

    from posenc.running.jobs import check_jobs, run_job
    from posenc.running.slurm import launch
    from posenc.running.sweep import run_sweep, sweep_name
    from posenc.training.distributed import current

    if composed.sweep and current().size > 1:
        problem = "torchrun makes several processes of one run, not of a sweep"
        raise UserError("-m", None, problem, hint="one torchrun for each run; or -m without torchrun")
    checked = current().in_turn(lambda: check_jobs(command, composed))
    if composed.config is not None:
        configure_log(composed.config.hydra.job_logging, composed.config.hydra.verbose)
        ((one, job),) = checked
        return run_job(job, one.overrides, invocation)
    invocation = replace(invocation, sweep=sweep_name(checked))
    elsewhere = None
    if composed.launcher is not None:
        elsewhere = partial(launch, command, line, composed.launcher, invocation)
    return run_sweep(command, line, checked, invocation, elsewhere)


def help_text(command: str, arguments: list[str], width: int) -> str:
    """Return examples, choices and settings with their comments, as the arguments choose them."""
    overrides = [word for word in arguments if "=" in word and not word.startswith("-")]
    config_dir, texts = config_dir_of(arguments), command_tree(command)["hydra"]["help"]
    lines = [*texts["header"].splitlines(), "", "Choices (GROUP=CHOICE; --help behind it shows its keys)"]
    for group, default in groups(command).items():
        ends = f"; default {default}" if default else ""
        choice = f"  {group}: {', '.join(choice_files(group, config_dir))}{ends}"
        lines += textwrap.wrap(choice, width, subsequent_indent="    ", break_on_hyphens=False)
    lines += ["", "Settings (KEY=VALUE) and their defaults"]
    shown = chosen_settings(command, overrides, config_dir)
    words = [f"  {one.key}={one.value.replace(', ', ',').replace(': ', ':')}" for one in shown]
    column = min(max(map(len, words)) + 2, COLUMN)
    for word, one in zip(words, shown, strict=True):
        begin = f"{word}  ".ljust(column)
        lines += textwrap.wrap(one.comment, width, initial_indent=begin, subsequent_indent=" " * column) or [
            word
        ]
    return "\n".join([*lines, "", *texts["footer"].splitlines()]) + "\n"
