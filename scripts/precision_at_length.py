"""bf16 against fp32 on trained weights: the loss of the same targets at T and at 8T, in nats.

    python scripts/precision_at_length.py runs/headline/*
Positions that were rounded would show as a difference that grows with the length.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.data import prepare
from posenc.evaluation import fixed_target
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.results.settings import spoken_name
from posenc.running.build import build_model
from posenc.running.eval_job import eval_job
from posenc.running.measure import subject_and_asked
from posenc.training.checkpoint import load_weights, newest_checkpoint


def losses(run: str, max_targets: int) -> tuple[str, list[float]]:
    """The encoding's name and nats per token at T and 8T, fp32 then bf16 each."""
    (composed,) = compose_jobs("eval", parse([f"run={run}"])).jobs
    job = eval_job(composed.settings)
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    checkpoint = newest_checkpoint(job.directory / "checkpoints")
    assert checkpoint is not None
    model = build_model(job.trained, job.shape, store.vocab_size)
    load_weights(checkpoint.path, model)
    subject, asked = subject_and_asked(job.trained, model, store, job.evaluation, job.device)
    length = subject.train_length
    plan = fixed_target.plan(replace(asked, windows=[length, 8 * length], max_targets=max_targets))
    found = []
    for window in (length, 8 * length):
        for precision in ("fp32", "bf16"):
            try:
                sums = fixed_target.measure(replace(subject, precision=precision), plan, window)
                found.append(float(sums.nats.sum() / sums.targets.sum()))
            except NotApplicableError:
                found.append(float("nan"))
    return str(spoken_name(job.trained["encoding"])), found


def main() -> None:
    table = Table("encoding", "T, fp32", "bf16 - fp32", "8T, fp32", "bf16 - fp32")
    for run in sys.argv[1:]:
        name, (short, short_bf16, long, long_bf16) = losses(run, max_targets=4_000)
        table.add_row(
            name,
            f"{short:.4f}",
            f"{short_bf16 - short:+.4f}",
            f"{long:.4f}",
            f"{long_bf16 - long:+.4f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
