"""`posenc export`: the results of many runs in one small file, for `posenc compare` anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.results.bundle import MOST_RUNS, SUFFIX, bundled, packed
from posenc.results.filters import where
from posenc.results.load import Run, load_runs, run_names


def run_export(runs: Sequence[str], conditions: Sequence[str], out: str) -> None:
    """Write every run below `runs` that has ended into the bundle `out`. Raises UserError, RunError.

    One that diverged goes with the others: without it its row would be that of the survivors.
    """
    if not out.endswith(SUFFIX):
        raise UserError("--out", visible(out), "the file's name must tell what it is", hint=f"{out}{SUFFIX}")
    path = output_file("--out", out)
    found = where(load_runs(runs), conditions)
    ended = [run for run in found if _has_ended(run)]
    if not any(run.state == "finished" for run in ended):
        raise UserError("RUNS", visible(" ".join(runs)), "no finished run there", hint="see: posenc runs")
    if len(ended) > MOST_RUNS:
        raise UserError("RUNS", f"{len(ended)} runs", f"a bundle holds at most {MOST_RUNS}", hint="--where")
    _refuse_same_names([run.name for run in ended])
    data = packed([bundled(run) for run in sorted(ended, key=lambda run: run.name)])
    write_bytes_atomic(path, data)
    count = "1 run" if len(ended) == 1 else f"{len(ended)} runs"
    diverged = sum(run.state == "diverged" for run in ended)
    count += f" ({diverged} diverged)" if diverged else ""
    say(f"wrote {visible(out)}: {count}, {len(data) / 1e6:.2f} MB")
    left = [run for run in found if not _has_ended(run)]
    if left:
        say(f"left out, not finished: {run_names(left)}")


def _has_ended(run: Run) -> bool:
    return run.state == "diverged" or (run.state == "finished" and run.facts is not None)


def _refuse_same_names(names: Sequence[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        problem = "the same run in several folders"
        raise UserError("RUNS", visible(twice[0]), problem, hint="name the folder that is meant")
