"""Enumerate the jobs of a sweep: every combination of the values on the command line."""

from __future__ import annotations

import glob
import math
from fractions import Fraction

from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, QuotedString, RangeSweep

from posenc.config.hydra_adapter import combinations, override_parser
from posenc.config.keys import key_of
from posenc.config.overrides import quote
from posenc.config.parsing import has_several_values
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import expanded, is_file, is_folder
from posenc.core.run_states import FINISHED
from posenc.results.discovery import find_locations
from posenc.results.runs import load_run
from posenc.training.checkpoint import checkpoint_paths

# A job takes 10 ms to compose and as long to check, and a sweep of a day has some hundreds. Slurm's own limit
# for an array is 1,001 unless a cluster raises it.
LARGEST_SWEEP = 2_000  # jobs
UNCOUNTED = 10**15  # jobs; a larger number is not printed in digits


def grid(command: str, overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job. Needs an initialized Hydra. Raises UserError."""
    for override in overrides:
        has_several_values(override)  # raises for one that cannot be read
    if command == "eval":
        overrides = [_list_runs(override) for override in overrides]
    by_key: dict[str, Override] = {}
    for parsed in override_parser().parse_overrides(overrides):
        by_key[parsed.get_key_element()] = parsed  # the last one on the line counts
    jobs = 1
    for key, parsed in by_key.items():
        if not parsed.is_sweep_override():
            continue
        # `interval()` of Hydra's grammar is for sweepers that search.
        if not parsed.is_discrete_sweep():
            raise UserError(key, parsed.get_value_string(), "cannot be enumerated")
        # The jobs are counted before any is made: `seed=range(0,1e9)` would fill the memory.
        jobs *= _count_values(key, parsed)
    if jobs > LARGEST_SWEEP:
        swept = [text for text in overrides if has_several_values(text)]
        count = f"{jobs:,}" if jobs < UNCOUNTED else f"more than {UNCOUNTED:.0e}"
        hint = "several commands, each with a part of the values"
        allowed = f"up to {LARGEST_SWEEP:,} jobs in a sweep"
        raise UserError(" ".join(swept), None, f"makes {count} jobs", allowed=allowed, hint=hint)
    return combinations(list(by_key.values()))


def _count_values(key: str, override: Override) -> int:
    """Return how many values a sweep over one key has, without making them. Raises UserError."""
    values = override.value()
    if isinstance(values, RangeSweep):
        return _count_range(key, override.get_value_string(), values)
    return sum(1 for _ in override.sweep_iterator())


def _count_range(key: str, text: str, values: RangeSweep) -> int:
    """Return how many numbers a range has. Raises UserError for a range that is endless or has no numbers."""
    assert values.start is not None  # Hydra's grammar fills both in
    assert values.stop is not None
    allowed = "range(stop), range(start,stop), range(start,stop,step)"
    if not all(math.isfinite(number) for number in (values.start, values.stop, values.step)):
        raise UserError(key, text, "is no range of finite numbers", allowed=allowed)
    if values.step == 0:
        raise UserError(key, text, "has a step of 0", allowed=allowed)
    # exact, since whole numbers may be too large for a float, and a step too small
    length = Fraction(values.stop) - Fraction(values.start)
    count = math.ceil(length / Fraction(values.step))
    if count <= 0:
        raise UserError(key, text, "has no numbers", allowed=allowed)
    return count


def _list_runs(override: str) -> str:
    """Return an override of `run` with every folder and glob replaced by the trained runs in it."""
    if key_of(override) != "run":
        return override
    value = override_parser().parse_override(override).value()
    if value is None:  # `run=null`: no run, as without -m
        return override
    if isinstance(value, Glob):
        text = override.partition("=")[2]
        hint = "a folder or a path with * takes all runs in it: 'run=runs/default/*'"
        raise UserError("run", text, "glob() chooses among the choices of a group", hint=hint)
    names = value.list if isinstance(value, ChoiceSweep) else [value]
    runs: list[str] = []
    for name in names:
        text = name.text if isinstance(name, QuotedString) else str(name)
        runs += _runs_of(text)
    # A run may be named and lie in a folder that is named, too.
    distinct = dict.fromkeys(runs)  # keeps the order
    key = override.partition("=")[0]
    quoted_runs = ",".join(quote(run) for run in distinct)
    return f"{key}={quoted_runs}"


def _runs_of(text: str) -> list[str]:
    """Return the runs that a value of `run` stands for."""
    is_run_directory = is_folder(text) and is_file(expanded(text) / "config.yaml")
    if is_run_directory:
        return [text]  # even if it is not trained: its job says so
    if is_folder(text) or glob.has_magic(text):
        return _trained_runs(text)
    return [text]  # a name or a hash


def _trained_runs(text: str) -> list[str]:
    """Return the trained runs below a folder or of a glob, and print which others are left out.

    Raises UserError if no run is trained.
    """
    try:
        locations = find_locations([expanded(text)])
    except UserError as error:
        raise UserError("run", text, "nothing is there by that name") from error
    trained = []
    for run, problem in locations:
        state = problem or load_run(run).state
        if state == FINISHED and not checkpoint_paths(run / "checkpoints"):
            state = "no checkpoint"
        if state == FINISHED:
            trained.append(str(run))
        else:
            say(f"{visible(run)}: left out: {state}")
    if not trained:
        raise UserError("run", text, "there is no trained run below it")
    return trained
