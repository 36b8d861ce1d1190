"""Seconds and peak memory of evaluations of trained runs, each measured in a process of its own.

    python scripts/evaluation_costs.py runs/headline/rope-nano-T64-s0-1a2b3c4d
        every protocol at every window of the default evaluation, repeated, medians; then those of the default
        evaluation together, where a pass that several of them need is made once
    python scripts/evaluation_costs.py RUN RUN --lengths 8x,64x,1024x --targets 16
        fixed-target at long windows, and how the costs of a window grow with its length
Seconds are of CPU time where there is no GPU, so that what else the machine does is not counted: set
OMP_NUM_THREADS=1 for seconds of one core. Memory is the most that was held less what was held before.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from posenc.results.schema import Record

REPEATS = 3


def measure_one(run: str, protocols: str, lengths: str, targets: int, only: int) -> dict[str, float]:
    """Seconds of each cell of an evaluation, in its order; those at the window `only` alone if that is not 0.

    Of several protocols the passes are shared, as in `posenc eval`.
    """
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse
    from posenc.core.memory_meter import peak_of
    from posenc.data import prepare
    from posenc.evaluation.evaluate import evaluate, plan_cells
    from posenc.running.build import build_model
    from posenc.running.eval_job import eval_job
    from posenc.running.measure import subject_and_asked
    from posenc.training.checkpoint import load_weights, newest_checkpoint

    asked = [f"run={run}", f"eval.protocols=[{protocols}]", f"eval.max_targets={targets}"]
    asked += [f"eval.lengths=[{lengths}]"] if lengths else []
    (composed,) = compose_jobs("eval", parse(asked)).jobs
    job = eval_job(composed.settings)
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    checkpoint = newest_checkpoint(job.directory / "checkpoints")
    assert checkpoint is not None
    model = build_model(job.trained, job.shape, store.vocab_size)
    load_weights(checkpoint.path, model)
    subject, wanted = subject_and_asked(job.trained, model, store, job.evaluation, job.device)
    clock = time.process_time if job.device.type == "cpu" else time.perf_counter
    began = clock()
    cells = plan_cells(subject, wanted, job.evaluation.protocols)
    found = {"plan": clock() - began, "targets": 0.0}
    chosen = [cell for cell in cells if only in (0, cell.window)]
    first = min(chosen, key=lambda cell: cell.window)  # takes what a process sets up once
    first.module.measure(subject, first.plan, min(job.evaluation.windows), lambda: None)
    ended = [clock()]

    def on_cell(record: Record, was_there: bool) -> None:
        if record["note"]:
            sys.exit(f"{record['protocol']} at {record['window']}: {record['note']}")
        ended.append(clock())
        found[f"{record['protocol']} at {record['window']}"] = ended[-1] - ended[-2]
        found["targets"] = float(record["targets"])

    with tempfile.TemporaryDirectory() as folder, peak_of(job.device, ()) as held:
        step = checkpoint.step
        evaluate(chosen, Path(folder), corpus=job.data["name"], checkpoint_step=step, on_cell=on_cell)
    found["memory"] = float(held[0])
    return found


def in_a_process(
    run: str, protocols: str, lengths: str, targets: int, only: int, repeats: int
) -> dict[str, float]:
    """Medians of `measure_one`."""
    rows = []
    for _ in range(repeats):
        given = ["--one", protocols, "--lengths", lengths, "--targets", str(targets), "--only", str(only)]
        done = subprocess.run(
            [sys.executable, __file__, run, *given], capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        rows.append(json.loads(done.stdout))
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def by_protocol(run: str, targets: int, repeats: int) -> Table:
    """A line for each protocol, and one for those of the default evaluation together."""
    from posenc.config.checks import default_evaluation
    from posenc.evaluation import PROTOCOLS

    together = ",".join(default_evaluation()["protocols"])
    table = Table("protocol", "targets", "plan, s", "8T, s", "all lengths, s", "memory, MB")
    for protocols in (*PROTOCOLS, together):
        found = in_a_process(run, protocols, "", targets, 0, repeats)
        seconds = {key: value for key, value in found.items() if " at " in key}
        longest = max(int(key.split(" at ")[1]) for key in seconds)
        table.add_row(
            protocols.replace(",", " + "),
            f"{found['targets']:.0f}",
            f"{found['plan']:.2f}",
            f"{sum(value for key, value in seconds.items() if key.endswith(f' at {longest}')):.1f}",
            f"{sum(seconds.values()):.1f}",
            f"{found['memory'] / 1e6:.0f}",
        )
    return table


def by_length(runs: Sequence[str], lengths: str, targets: int, repeats: int) -> Table:
    """A line for each window of each run; exponents are those of the growth since the line before."""
    from posenc.evaluation.lengths import resolve_lengths

    table = Table(
        "run", "window", "targets", "seconds", "seconds a target", "grows as", "memory, MB", "grows as"
    )
    for run in runs:
        settings = json.loads((Path(run) / "results.json").read_text())["run"]
        before: tuple[int, float, float] | None = None
        for window in resolve_lengths(lengths.split(","), settings["context_length"]):
            found = in_a_process(run, "fixed-target", lengths, targets, window, repeats)
            seconds, memory = found[f"fixed-target at {window}"], found["memory"]
            each = seconds / found["targets"]
            growths = ["", ""]
            if before is not None:
                ratio = math.log(window / before[0])
                growths = [
                    f"W^{math.log(a / b) / ratio:.2f}"
                    for a, b in zip((each, memory), before[1:], strict=True)
                ]
            before = (window, each, memory)
            table.add_row(
                Path(run).name.split("-")[0],
                str(window),
                f"{found['targets']:.0f}",
                f"{seconds:.2f}",
                f"{each:.4f}",
                growths[0],
                f"{memory / 1e6:.0f}",
                growths[1],
            )
            print(f"{run} at {window}: {seconds:.2f} s, {memory / 1e6:.0f} MB", file=sys.stderr)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--lengths", default="", help="multiples of T or tokens, with commas between")
    parser.add_argument("--targets", type=int, default=0, help="0: as by default")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--only", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    from posenc.config.checks import default_evaluation

    targets = given.targets or default_evaluation()["max_targets"]
    if given.one:
        print(json.dumps(measure_one(given.runs[0], given.one, given.lengths, targets, given.only)))
        return
    if given.lengths:
        tables = [by_length(given.runs, given.lengths, targets, given.repeats)]
    else:
        tables = [by_protocol(run, targets, given.repeats) for run in given.runs]
    for table in tables:
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
