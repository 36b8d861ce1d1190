"""The jobs of a sweep: every combination of the values on the command line."""

from __future__ import annotations

import glob
import math
from fractions import Fraction

from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString, RangeSweep

from posenc.config.hydra_adapter import combinations, override_parser
from posenc.config.overrides import key_of, quoted
from posenc.config.parsing import is_sweep
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import expanded, is_file, is_folder
from posenc.results.discovery import run_places
from posenc.results.runs import load_run
from posenc.training.checkpoint import checkpoint_paths

# A job takes 10 ms to compose and as long to check, and a sweep of a day has some hundreds. Slurm's own limit
# for an array is 1,001 unless a cluster raises it.
LARGEST_SWEEP = 2_000  # jobs
UNCOUNTED = 10**15  # jobs; a larger number is not printed in digits


def grid(command: str, overrides: list[str]) -> list[list[str]]:
    """Return the overrides of every job. Needs an initialized Hydra. Raises UserError."""
    for override in overrides:
        is_sweep(override)  # raises for one that cannot be read
    if command == "eval":
        overrides = [_with_runs_listed(text) if key_of(text) == "run" else text for text in overrides]
    parsed = override_parser().parse_overrides(overrides)
    by_key = {element.get_key_element(): element for element in parsed}  # the last one on the line wins
    jobs = 1
    for key, element in by_key.items():
        if not element.is_sweep_override():
            continue
        if not element.is_discrete_sweep():
            raise UserError(key, element.get_value_string(), "cannot be enumerated")
        jobs *= _count_values(key, element)
    if jobs > LARGEST_SWEEP:
        swept = [text for text in overrides if is_sweep(text)]
        count = f"{jobs:,}" if jobs < UNCOUNTED else f"more than {UNCOUNTED:.0e}"
        hint = "several commands, each with a part of the values"
        allowed = f"up to {LARGEST_SWEEP:,} jobs in a sweep"
        raise UserError(" ".join(swept), None, f"makes {count} jobs", allowed=allowed, hint=hint)
    return combinations(list(by_key.values()))


def _count_values(key: str, element: Override) -> int:
    """Return how many values a sweep over one key has, without making them. Raises UserError."""
    values = element.value()
    if isinstance(values, RangeSweep):
        return _count_range(key, element.get_value_string(), values)
    return sum(1 for _ in element.sweep_iterator())


def _count_range(key: str, text: str, values: RangeSweep) -> int:
    """Return how many numbers a range has. Raises UserError for one that has no end, or is none."""
    assert values.start is not None  # Hydra's grammar fills both in
    assert values.stop is not None
    allowed = "range(stop), range(start,stop), range(start,stop,step)"
    if not all(math.isfinite(number) for number in (values.start, values.stop, values.step)):
        raise UserError(key, text, "is no range of finite numbers", allowed=allowed)
    if values.step == 0:
        raise UserError(key, text, "has a step of 0", allowed=allowed)
    # exact, since whole numbers may be too large for a float, and a step too small
    length = Fraction(values.stop) - Fraction(values.start)
    return max(0, math.ceil(length / Fraction(values.step)))


def _with_runs_listed(override: str) -> str:
    """Put the runs below a folder or of a glob in its place. A run directory stays, for its job to judge."""
    value = override_parser().parse_override(override).value()
    names = value.list if isinstance(value, ChoiceSweep) else [value]
    runs: dict[str, None] = {}  # a set that keeps the order
    for name in names:
        text = name.text if isinstance(name, QuotedString) else str(name)
        for run in _runs_named(text):
            runs[run] = None
    return f"{override.partition('=')[0]}={','.join(quoted(run) for run in runs)}"


def _runs_named(text: str) -> list[str]:
    is_run = is_folder(text) and is_file(expanded(text) / "config.yaml")
    is_several = is_folder(text) or glob.has_magic(text)
    return [text] if is_run or not is_several else _trained_runs(text)


def _trained_runs(text: str) -> list[str]:
    """Return the trained runs below a folder or of a glob; what is left out is named.

    Raises UserError where nothing is left.
    """
    try:
        places = run_places([expanded(text)])
    except UserError as error:
        raise UserError("run", text, "nothing is there by that name") from error
    trained = []
    for run, problem in places:
        state = problem or load_run(run).state
        if state == "finished" and not checkpoint_paths(run / "checkpoints"):
            state = "no checkpoint"
        if state == "finished":
            trained.append(str(run))
        else:
            say(f"{visible(run)}: left out: {state}")
    if not trained:
        raise UserError("run", text, "there is no trained run below it")
    return trained
