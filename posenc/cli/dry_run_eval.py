"""Run `posenc eval --dry-run`: print what each job would measure. Nothing is tokenised or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from posenc.cli.dry_run import check_corpus_is_here, megabytes
from posenc.config.compose import Jobs
from posenc.core.console import terminal_width
from posenc.core.errors import plural, visible
from posenc.core.progress import end_starting
from posenc.core.quantities import duration, length_text
from posenc.data.hub import go_offline
from posenc.report.tables import Table, table_of_rows, text_column
from posenc.report.terminal import table_text
from posenc.running.estimate import CellEstimate, EvaluationEstimate, estimate_evaluation
from posenc.running.given_model import OPEN_DIGEST
from posenc.running.job import Job
from posenc.running.jobs import check_jobs, in_running_order
from posenc.running.measured_text import text_line
from posenc.running.room import room_on
from posenc.running.sweep.resources import START_SECONDS
from posenc.training.checkpoint import newest_checkpoint

STORED = "stored"
TO_MEASURE = "to measure"
SHARED = "shared"  # another protocol makes the same passes


@dataclass(frozen=True)
class EstimatedEvaluation:
    """Hold a job with what it takes."""

    job: Job
    step: int  # of the checkpoint
    estimate: EvaluationEstimate


def print_eval_dry_run(composed: Jobs) -> int:
    """Validate every job and print what it would measure; return 1 if one does not fit into memory, else 0.

    Raises UserError as a real evaluation would, and RunError if a corpus would have to be fetched.
    """
    go_offline()
    for composed_job in composed.jobs:
        if composed_job.eval_settings.data is not None:
            check_corpus_is_here(composed_job.eval_settings.data)
    evaluations = []
    records: set[Path] = set()  # files that the jobs so far will have written
    for checked in in_running_order(check_jobs(composed, only_estimate=True)):
        job = checked.job
        step = _step_of(job)
        estimate = estimate_evaluation(job, step, earlier=records)
        records.update(estimate.records)
        evaluations.append(EstimatedEvaluation(job, step, estimate))
        job.corpus_facts.release()  # the documents of all jobs at once may be gigabytes
    end_starting()
    console = Console(width=terminal_width(), highlight=False)
    seconds = _total_seconds(evaluations)
    count = plural(len(evaluations), "job")
    device = evaluations[0].job.device
    console.print(Text(f"About {duration(seconds)} for {count} on {device}; nothing was measured.\n"))
    if len(evaluations) == 1:
        _print_cells(console, evaluations[0])
    else:
        _print_table(console, _jobs_table(evaluations))
    room = room_on(device, evaluations[0].job.given_model)
    # Evaluations of one sweep may run at once, but each is a process that has to fit by itself.
    largest = max(evaluation.estimate.memory for evaluation in evaluations)
    console.print(Text(f"memory     about {megabytes(room.needed(largest))} of {megabytes(room.free)} free"))
    return 0 if room.fits(largest) else 1


def _total_seconds(evaluations: Sequence[EstimatedEvaluation]) -> float:
    """Return how long the evaluations take; each of a sweep is a process, which has to begin."""
    seconds = [evaluation.estimate.seconds for evaluation in evaluations]
    if len(evaluations) == 1:
        return seconds[0]
    open_seconds = [START_SECONDS + value for value in seconds if value > 0]
    return sum(open_seconds)


def _step_of(job: Job) -> int:
    """Return the step of the checkpoint that would be measured; 0 for a given model."""
    if job.given_model is not None:
        return 0
    checkpoint = newest_checkpoint(job.directory / "checkpoints", job.writer)
    assert checkpoint is not None  # the job was made of it
    return checkpoint.step


def _print_table(console: Console, table: Table) -> None:
    console.print(Text(table_text(table, console.width)))


def _print_cells(console: Console, evaluation: EstimatedEvaluation) -> None:
    """Print a line for each number that would be measured, and what it would be measured on."""
    job = evaluation.job
    rows = [_cell_row(cell, job.settings.context_length) for cell in evaluation.estimate.cells]
    heads = ["protocol", "window", "targets", "passes", "time"]
    table = table_of_rows(heads, [row[:-1] for row in rows])
    states = text_column("", [row[-1] for row in rows], is_words=True)
    _print_table(console, Table((*table.columns, states)))
    console.print(Text(f"run        {visible(job.directory)}, step {evaluation.step}"), soft_wrap=True)
    console.print(
        Text(f"text       {text_line(job.data, job.corpus_facts, job.evaluation.split, job.settings)}")
    )
    for note in job.notes:
        console.print(Text(visible(note)))
    if evaluation.estimate.tries:
        time = duration(evaluation.estimate.tuning_seconds)
        console.print(Text(f"tuning     up to {evaluation.estimate.tries} candidates, {time} of the time"))
    if evaluation.estimate.has_exact_targets and job.settings_hash == OPEN_DIGEST:
        console.print(Text("What is stored is not known: the weights were not read."))
    if not evaluation.estimate.has_exact_targets:
        console.print(Text("Targets are estimated: the text is not tokenised. What is stored is not known."))


def _cell_row(cell: CellEstimate, train_length: int) -> list[str]:
    """Return the texts of a cell, its state last."""
    name = cell.protocol if cell.extension is None else f"{cell.protocol} +{cell.extension}"
    # The ratio is rounded, since a window such as 0.3T is no exact multiple in binary.
    window = f"{cell.window} ({length_text(round(cell.window / train_length, 4))})"
    if cell.problem is not None:
        return [name, window, "-", "-", "-", cell.problem]
    if cell.is_stored:
        return [name, window, f"{cell.targets:,}", "-", "-", STORED]
    if not cell.seconds:
        return [name, window, f"{cell.targets:,}", "-", "-", SHARED]
    return [name, window, f"{cell.targets:,}", f"{cell.passes:,}", duration(cell.seconds), TO_MEASURE]


def _jobs_table(evaluations: list[EstimatedEvaluation]) -> Table:
    """Return a line for each job."""
    rows = []
    for evaluation in evaluations:
        cells = evaluation.estimate.cells
        open_cells = [cell for cell in cells if not cell.is_stored and cell.problem is None]
        extend = evaluation.job.evaluation.extension_name
        rows.append(
            [
                visible(evaluation.job.directory.name),
                extend,
                f"{len(open_cells)} of {len(cells)}",
                f"{sum(cell.targets for cell in open_cells):,}",
                f"{sum(cell.passes for cell in open_cells):,}",
                duration(evaluation.estimate.seconds),
            ]
        )
    return table_of_rows(["run", "extend", "to measure", "targets", "passes", "time"], rows)
