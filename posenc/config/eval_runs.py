"""Expand `posenc eval -m run=...`: run directories, folders with runs below them, globs."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatch

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, QuotedString

from posenc.config.overrides import key_of, quoted
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.results.load import SUFFIX as BUNDLE
from posenc.results.load import load_run, run_places
from posenc.training.checkpoint import checkpoint_paths


def with_each_run(overrides: list[str], parser: OverridesParser) -> list[str]:
    """Put the runs below a folder or a glob in its place; a run directory stays as it is.

    Runs that are not finished are left out and named. Raises UserError where nothing is left.
    """
    return [_expanded(override, parser) if key_of(override) == "run" else override for override in overrides]


def _expanded(override: str, parser: OverridesParser) -> str:
    value = parser.parse_override(override).value()
    if isinstance(value, Glob):  # as in extend=glob(*)
        found = [run for one in value.include for run in _runs_below(one)]
        runs = [run for run in found if not any(fnmatch(run, pattern) for pattern in value.exclude)]
        if not runs:
            raise UserError("run", override.partition("=")[2], "leaves out every run")
    else:
        every = value.list if isinstance(value, ChoiceSweep) else [value]
        named = [one.text if isinstance(one, QuotedString) else str(one) for one in every]
        if not any(_is_several(one) for one in named):
            return override
        runs = [run for one in named for run in (_runs_below(one) if _is_several(one) else [one])]
    return f"{override.partition('=')[0]}={','.join(quoted(run) for run in dict.fromkeys(runs))}"


def _is_several(given: str) -> bool:
    path = os.path.expanduser(given)  # noqa: PTH111 (Path's raises for an unknown user)
    if os.path.isdir(path):  # noqa: PTH112 (is_dir raises for names too long)
        return not os.path.isfile(os.path.join(path, "config.yaml"))  # noqa: PTH113, PTH118
    return glob.has_magic(path)


def _runs_below(given: str) -> list[str]:
    try:
        pattern = os.path.expanduser(given)  # noqa: PTH111
        below = run_places([pattern])
    except UserError as error:
        raise UserError("run", given, "nothing is there by that name") from error
    kept = []
    for path, problem in below:
        if problem is None and path.name.endswith(BUNDLE):
            problem = "a bundle holds no weights"
        if problem is None and not checkpoint_paths(path / "checkpoints"):
            problem = "has no checkpoint yet"
        if problem is None and (state := load_run(path, ()).state) != "finished":
            problem = f"{state}; to measure it as it is, name it"
        if problem is None:
            kept.append(str(path))
        else:
            say(f"{visible(path)}: left out: {problem}")
    if not kept:
        raise UserError("run", given, "there is no trained run below it")
    return kept
