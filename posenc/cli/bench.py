"""`posenc bench`: speed and memory of training and evaluation, by encoding and length, as tables or JSON.

Each row is timed in turns with the first row of its table. docs/performance.md has the JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

from posenc.config.compose import compose_jobs
from posenc.config.keys import group_of, key_of
from posenc.config.keys_of_commands import EVAL_KEYS_OF_BENCH, is_read_by_bench
from posenc.config.overrides import CommandLine
from posenc.core.console import terminal_width, write
from posenc.core.errors import UserError
from posenc.report.papers import markdown
from posenc.report.tables import Report, Table, table_of_rows
from posenc.report.terminal import terminal_text
from posenc.running.bench.case import TableTitle, make_cases
from posenc.running.bench.document import BenchDocument, BenchRow, measure_all, measure_case
from posenc.running.bench.timing import Figures
from posenc.settings.numbers import check_whole
from posenc.training.memory import keep_freed_memory

NOT_MEASURED = "-"


def run_bench(line: CommandLine, *, repeats: int, lengths: str, format: str) -> int:
    """Measure what the overrides choose, and print it. Return 0, or 1 if no row could be trained."""
    check_whole("--repeats", repeats, least=1)
    _refuse_unread(line)
    # encoding=rope,alibi is two rows, also without -m
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs
    # A training does so, too. Without it a step has thousands of page faults (docs/log.md).
    keep_freed_memory()
    cases = make_cases(jobs, lengths)
    document = measure_all(cases, repeats, cases[0].step.device, measure=measure_case)
    write(render(document, format, terminal_width()), sys.stdout)
    # One row may fail for a reason of its own, and the others are still a result.
    was_trained = any(row.training.timing is not None for row in document.rows)
    return 0 if was_trained else 1


def _refuse_unread(line: CommandLine) -> None:
    """Raise UserError for a setting without effect: a table that ignores it would be read as its result."""
    for override in line.overrides:
        key = key_of(override)
        # `tracking=none` says what a bench does anyway.
        if is_read_by_bench(key) or override == "tracking=none":
            continue
        hint = "it times models as trained, one after the other, and keeps no run"
        if group_of(key) == "eval":
            hint = f"it reads {', '.join(EVAL_KEYS_OF_BENCH)}; lengths to evaluate at: --eval-lengths 1x,8x"
        raise UserError(key, None, "is not read by bench", hint=hint)


def render(document: BenchDocument, format: str, width: int) -> str:
    """Return the document as text: table, markdown or json; `width` in columns."""
    if format == "json":
        return json.dumps(document.plain(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    report = Report(
        facts=[_machine_line(document)],
        answer="",
        tables=_tables(document.rows),
        notes=_notes(document),
        has_gap=True,
    )
    if format == "markdown":
        return markdown([report])
    return terminal_text([report], width, color=False)


def _machine_line(document: BenchDocument) -> str:
    machine = document.machine
    parts = [machine.device_name] if machine.device_name else []
    parts += [
        machine.cpu,
        f"{machine.threads} of {machine.cores} cores",
        f"torch {machine.versions['torch']}",
        document.date[:10],
    ]
    return ", ".join(parts)


def _tables(rows: list[BenchRow]) -> list[Table]:
    """Return a table for each title."""
    rows_of_tables: dict[TableTitle, list[BenchRow]] = {}
    for row in rows:
        rows_of_tables.setdefault(row.title, []).append(row)
    tables = []
    for title, table_rows in rows_of_tables.items():
        has_mfu = any(row.mfu is not None for row in table_rows)
        texts = [_texts(row, has_mfu=has_mfu) for row in table_rows]
        tables.append(table_of_rows(_heads(table_rows[0], has_mfu=has_mfu), texts, _title_text(title)))
    return tables


def _title_text(title: TableTitle) -> str:
    length = title.context_length
    compiled = ", compiled" if title.compile else ""
    return (
        f"{title.model.name}, T = {length}, {title.precision} on {title.device}{compiled}; "
        f"a step of {title.batch_windows} x {length} tokens"
    )


def _heads(row: BenchRow, *, has_mfu: bool) -> list[str]:
    heads = ["encoding", "tokens/s", "time", "quartiles", "MB"]
    if has_mfu:
        heads.append("MFU")
    for window in row.evaluation:
        heads += [f"tokens/s at {window}", f"time at {window}"]
    return heads


def _texts(row: BenchRow, *, has_mfu: bool) -> list[str]:
    """Return the cells of a row."""
    training = row.training
    quartiles = NOT_MEASURED
    megabytes = NOT_MEASURED
    if training.timing is not None:
        ratio = training.timing.ratio
        if ratio is not None:
            quartiles = f"{ratio.low:.2f}-{ratio.high:.2f}"
        if training.tensor_bytes is not None:
            megabytes = f"{training.tensor_bytes / 1e6:,.0f}"
    texts = [row.label, *_speed(training), quartiles, megabytes]
    if has_mfu:
        mfu_text = NOT_MEASURED if row.mfu is None else f"{row.mfu.share:.1%}"
        texts.append(mfu_text)
    for figures in row.evaluation.values():
        texts += _speed(figures)
    return texts


def _speed(figures: Figures) -> list[str]:
    """Return tokens a second, and the time relative to the first row."""
    timing = figures.timing
    if timing is None:
        return [NOT_MEASURED, NOT_MEASURED]
    ratio = NOT_MEASURED if timing.ratio is None else f"{timing.ratio.middle:.2f}x"
    return [f"{timing.tokens_per_second:,.0f}", ratio]


def _failures(row: BenchRow, phase: str, figures: Figures) -> list[str]:
    """Return why figures of a row were not measured."""
    lines = []
    if figures.reason is not None:
        lines.append(f"{row.label}, {phase}: {figures.reason}")
    if figures.base_reason is not None:
        lines.append(f"{row.label}, {phase}: no ratio, since {row.base} failed: {figures.base_reason}")
    return lines


def _notes(document: BenchDocument) -> list[str]:
    """Return why something was not measured, and what the columns mean."""
    notes = []
    for row in document.rows:
        # A dash in a table says that something failed, and the notes say what.
        notes += _failures(row, "training", row.training)
        for window, figures in row.evaluation.items():
            notes += _failures(row, f"evaluation at {window}", figures)
    notes.append(
        "time: of a step or an evaluation at W tokens, relative to the first row: median (and quartiles) "
        f"of {document.repeats} pairs, taken in turns"
    )
    notes.append("MB: of the tensors at a step's peak")
    # A share means nothing without the peak that it is a share of, and each precision has another one.
    peaks = {(row.title.precision, row.mfu.peak_flops) for row in document.rows if row.mfu is not None}
    for precision, peak in sorted(peaks):
        device = document.machine.device_name
        notes.append(
            "MFU: the FLOPs that the model needs for its tokens/s, as a share of "
            f"{peak / 1e12:g} TFLOP/s, the dense {precision} peak in the data sheet of {device}"
        )
    return notes
