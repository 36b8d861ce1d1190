"""Run `posenc export`: write results into one small file, or the weights of one run for transformers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, plural, visible
from posenc.core.paths import output_file
from posenc.report.texts import MOST_NAMED
from posenc.results.bundles import SUFFIX, bundle_line, pack_bundle
from posenc.results.discovery import load_runs
from posenc.results.runs import Run
from posenc.results.where import matching_runs


def run_export(directories: Sequence[str], conditions: Sequence[str], *, out: str, hf: str | None) -> None:
    """Write a bundle of all runs, or with `hf` the weights of one. Raises UserError, RunError."""
    # other commands take run=DIR, so it is understood here, too
    runs = [directory.removeprefix("run=") for directory in directories]
    if hf is None:
        write_bundle(runs or ["runs"], conditions, out)
        return
    if len(runs) != 1:
        raise UserError("RUNS", None, "--hf takes one run", hint="posenc export run=DIR --hf FOLDER")
    from posenc.running.export_hf import export_hf  # imports torch

    export_hf(runs[0], hf)


def write_bundle(paths: Sequence[str], conditions: Sequence[str], out: str) -> None:
    """Write every run below `paths` that has ended into the bundle `out`. Raises UserError, RunError.

    Runs that diverged are written, too: without them their row would be an average over the survivors.
    """
    if not out.endswith(SUFFIX):
        raise UserError("--out", out, "is not the name of a bundle", hint=f"{out}{SUFFIX}")
    path = output_file("--out", out)
    runs = matching_runs(load_runs(paths), conditions)
    ended = [run for run in runs if _has_ended(run)]
    unfinished = [run for run in runs if not _has_ended(run)]
    if not any(run.state == "finished" for run in ended):
        raise UserError("RUNS", " ".join(paths), "no finished run there", hint="see: posenc runs")
    _refuse_duplicates(ended)
    by_name = sorted(ended, key=lambda run: run.name)
    data = pack_bundle([bundle_line(run) for run in by_name])
    write_bytes_atomic(path, data)
    diverged = [run for run in ended if run.state == "diverged"]
    written = plural(len(ended), "run")
    if diverged:
        written += f" ({len(diverged)} diverged)"
    say(f"wrote {visible(out)}: {written}, {len(data) / 1e6:.2f} MB")
    _say_left_out(unfinished)


def _has_ended(run: Run) -> bool:
    # a finished run whose results.json is damaged has no facts
    return run.state == "diverged" or (run.state == "finished" and run.facts is not None)


def _refuse_duplicates(runs: Sequence[Run]) -> None:
    """Raise UserError if the same run is in several folders."""
    counts = Counter(run.name for run in runs)
    duplicates = sorted(name for name, count in counts.items() if count > 1)
    if duplicates:
        problem = "the same run in several folders"
        raise UserError("RUNS", duplicates[0], problem, hint="name the folder that is meant")


def _say_left_out(runs: Sequence[Run]) -> None:
    """Print which runs are left out of the bundle."""
    if not runs:
        return
    named = ", ".join(run.name for run in runs[:MOST_NAMED])
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    say(f"left out, not finished: {named}{more}")
