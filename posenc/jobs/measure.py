"""The evaluation that `train` and `eval` share: progress shown, cells stored, stops obeyed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.corpus import TokenStore
from posenc.evaluation.evaluate import evaluate
from posenc.evaluation.subject import Subject
from posenc.jobs.checks import EvalPlan
from posenc.jobs.signals import StopFlag
from posenc.model.decoder import Decoder
from posenc.report.progress import shown
from posenc.results.records import Record


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code, and the records it was asked for (None: whatever is stored)."""

    exit_code: int
    records: list[Record] | None = None


def measure(
    settings: dict[str, Any],
    model: Decoder,
    store: TokenStore,
    plan: EvalPlan,
    *,
    directory: Path,
    corpus: str,
    device: torch.device,
    step: int,
    stop: StopFlag,
) -> list[Record]:
    """Records of every cell of the plan for a model trained by `settings` up to `step`.

    Raises InterruptedRunError once a stop was asked for; what was finished before is stored.
    """
    subject = Subject(
        model=model,
        train_length=settings["context_length"],
        seed=settings["seed"],
        precision=settings["train"]["precision"],
        device=device,
        store=store,
        split=plan.split,
        batch_tokens=plan.batch_tokens,
    )
    done = 0
    with shown("evaluating", len(plan.protocols) * len(plan.windows)) as bar:

        def on_cell(record: Record, was_there: bool) -> None:
            nonlocal done
            done += 1
            bar.update(done, f"{record['protocol']} at {record['window']}" + " (stored)" * was_there)

        return evaluate(
            subject,
            directory,
            protocols=plan.protocols,
            windows=plan.windows,
            target_fraction=plan.target_fraction,
            max_targets=plan.max_targets,
            corpus=corpus,
            checkpoint_step=step,
            on_cell=on_cell,
            check_stop=stop.check,
        )
