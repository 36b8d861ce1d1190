"""Seconds and peak memory of each protocol at 8T, for a trained run; each in a process of its own.

    python scripts/evaluation_costs.py runs/headline/rope-nano-T64-s0-1a2b3c4d
Memory is the most that the process held less what it held before the measurement. Repeated, medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

REPEATS = 3


def measure_one(run: str, protocol: str) -> dict[str, float]:
    """One protocol at every window of the default evaluation and, apart, at 8T."""
    from posenc.corpus import prepare
    from posenc.evaluation.evaluate import protocol_module
    from posenc.evaluation.plans import windows_of
    from posenc.jobs.build import build_model, peak_memory
    from posenc.jobs.checks import default_evaluation
    from posenc.jobs.compose import compose_jobs, parse
    from posenc.jobs.eval_job import eval_job
    from posenc.jobs.measure import subject_and_asked
    from posenc.training.checkpoint import load_weights, newest_checkpoint

    usual = default_evaluation()["max_targets"]
    asked = [f"run={run}", f"eval.protocols=[{protocol}]", f"eval.max_targets={usual}"]
    (composed,) = compose_jobs("eval", parse(asked)).jobs
    job = eval_job(composed.settings)
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    checkpoint = newest_checkpoint(job.directory / "checkpoints")
    assert checkpoint is not None
    model = build_model(job.trained, job.shape, store.vocab_size)
    load_weights(checkpoint.path, model)
    subject, wanted = subject_and_asked(job.trained, model, store, job.evaluation, job.device)
    module = protocol_module(protocol)
    began = time.perf_counter()
    plan = module.plan(wanted)
    planning = time.perf_counter() - began
    before, found = peak_memory(job.device) or 0, {"plan": planning, "targets": 0.0}
    for window in sorted(windows_of(module, wanted), reverse=True):
        began = time.perf_counter()
        sums = module.measure(subject, plan, window, lambda: None)
        found[f"at {window}"] = time.perf_counter() - began
        found["targets"] = float(sums.targets.sum())
    found["memory"] = float((peak_memory(job.device) or 0) - before)
    return found


def main() -> None:
    run = sys.argv[1]
    if len(sys.argv) > 2:
        print(json.dumps(measure_one(run, sys.argv[2])))
        return
    from posenc.evaluation import PROTOCOLS

    table = Table("protocol", "targets", "plan, s", "8T, s", "all lengths, s", "memory, MB")
    for protocol in PROTOCOLS:
        rows = []
        for _ in range(REPEATS):
            done = subprocess.run([sys.executable, __file__, run, protocol], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            rows.append(json.loads(done.stdout))
        middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        seconds = {int(key[3:]): value for key, value in middle.items() if key.startswith("at ")}
        table.add_row(
            protocol,
            f"{middle['targets']:.0f}",
            f"{middle['plan']:.2f}",
            f"{seconds[max(seconds)]:.1f}",
            f"{sum(seconds.values()):.1f}",
            f"{middle['memory'] / 1e6:.0f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
