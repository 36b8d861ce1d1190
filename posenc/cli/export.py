"""Run `posenc export`: write the results of runs as one small file, or one run's weights for transformers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, first_few, plural, suggestion, visible
from posenc.core.paths import output_file
from posenc.core.run_states import DIVERGED, FINISHED
from posenc.report.texts import MOST_NAMED
from posenc.results.bundles import SUFFIX, bundle_line, pack_bundle
from posenc.results.discovery import load_runs
from posenc.results.runs import Run
from posenc.results.where import matching_runs

DEFAULT_BUNDLE = f"runs{SUFFIX}"
ENDING_OF_DATA = re.compile(r"(?<=\w)(\.(runs|jsonl?|csv|gz|zip))+$", re.I)  # no bundle: `foo.json`


def run_export(
    directories: Sequence[str], conditions: Sequence[str], *, out: str | None, hf: str | None
) -> None:
    """Write a bundle of all runs that meet the conditions, or with `hf` the weights of one run.

    Raises UserError, RunError.
    """
    # other commands take run=DIR, so that this one does, too
    paths = [directory.removeprefix("run=") for directory in directories]
    if hf is None:
        write_bundle(paths or ["runs"], conditions, out or DEFAULT_BUNDLE)
        return
    usage = "posenc export run=DIR --hf FOLDER"
    if conditions:
        raise UserError("--where", conditions[0], "chooses runs of a bundle; --hf takes one run", hint=usage)
    if out is not None:
        raise UserError("--out", out, "is the name of a bundle; --hf names its own folder", hint=usage)
    if len(paths) != 1:
        raise UserError("RUNS", None, "--hf takes one run", hint=usage)
    from posenc.running.export_hf import export_hf  # imports torch

    export_hf(paths[0], hf)


def write_bundle(paths: Sequence[str], conditions: Sequence[str], out: str) -> None:
    """Write every run below `paths` that has ended into the bundle `out`. Raises UserError, RunError.

    Runs that diverged are written, too. Otherwise a row of `compare` would average over only the seeds that
    survived.
    """
    # `posenc compare` knows a bundle by the end of its name.
    if not out.endswith(SUFFIX):
        stem = ENDING_OF_DATA.sub("", out)
        raise UserError("--out", out, "is not the name of a bundle", hint=suggestion(f"--out {stem}{SUFFIX}"))
    path = output_file("--out", out)
    runs = matching_runs(load_runs(paths), conditions)
    ended = [run for run in runs if _has_ended(run)]
    left_out = [run for run in runs if not _has_ended(run)]
    if not ended:
        raise UserError("RUNS", " ".join(paths), "no finished run there", hint="see: posenc runs")
    _refuse_duplicates(ended)
    # The same runs make the same bundle, in whatever order the disk lists them.
    by_name = sorted(ended, key=lambda run: run.name)
    data = pack_bundle([bundle_line(run) for run in by_name])
    write_bytes_atomic(path, data)
    diverged = [run for run in ended if run.state == DIVERGED]
    written = plural(len(ended), "run")
    if diverged:
        written += f" ({len(diverged)} diverged)"
    say(f"wrote {visible(out)}: {written}, {len(data) / 1e6:.2f} MB")
    if left_out:
        say(f"left out: {first_few([_name_and_state(run) for run in left_out], MOST_NAMED)}")


def _has_ended(run: Run) -> bool:
    # the results.json of a finished run may be gone
    return run.state == DIVERGED or (run.state == FINISHED and run.facts is not None)


def _name_and_state(run: Run) -> str:
    """Return why a run is not in a bundle: `rope-nano-T64-s0-12fada63 (interrupted)`."""
    state = "without results" if run.state == FINISHED else run.state
    return f"{visible(run.name)} ({state})"


def _refuse_duplicates(runs: Sequence[Run]) -> None:
    """Raise UserError for two runs of one name: a run in a bundle is found by its name alone."""
    counts = Counter(run.name for run in runs)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        problem = "a run of this name is in several folders"
        raise UserError("RUNS", duplicates[0], problem, hint="name the folder that is meant")
