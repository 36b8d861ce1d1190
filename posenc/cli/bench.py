"""`posenc bench`: speed and memory of training and evaluation, by encoding and length, as tables or JSON.

Each row is timed in turns with the first row of its table. docs/performance.md has the JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine, key_of
from posenc.core.errors import UserError
from posenc.report.papers import markdown
from posenc.report.tables import Report, Table, table_of_rows
from posenc.report.terminal import terminal_text, terminal_width, write
from posenc.running.bench.case import make_cases
from posenc.running.bench.document import measure_all, measure_case
from posenc.running.bench.timing import Figures
from posenc.settings.numbers import check_whole
from posenc.training.device import keep_freed_memory


def run_bench(line: CommandLine, *, repeats: int, lengths: str, format: str) -> int:
    """Measure what the overrides choose and print it; 0, or 1 where nothing could be trained."""
    check_whole("--repeats", repeats, least=1)
    for override in line.overrides:
        key = key_of(override)
        if key in ("eval.lengths", "eval.protocols"):
            hint = "lengths to evaluate at: --eval-lengths 1x,8x"
            raise UserError(key, None, "is not read by bench", hint=hint)
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs  # commas need no -m here
    keep_freed_memory()
    cases = make_cases(jobs, lengths)
    document = measure_all(cases, repeats, measure_case, cases[0].step.device)
    write(render(document, format, terminal_width()), sys.stdout)
    trained = any("seconds" in row["training"] for row in document["cells"])
    return 0 if trained else 1


def render(document: Mapping[str, Any], format: str, width: int) -> str:
    """Return the document as text: table, markdown or json; `width` in columns."""
    if format == "json":
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    report = Report(
        facts=[_machine_line(document)],
        answer="",
        tables=_tables(document["cells"]),
        notes=_notes(document),
        has_gap=True,
    )
    if format == "markdown":
        return markdown([report])
    return terminal_text([report], width, color=False)


def _machine_line(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    parts = [
        machine["cpu"],
        f"{machine['threads']} of {machine['cores']} cores",
        f"torch {machine['versions']['torch']}",
        document["date"][:10],
    ]
    if machine["device_name"]:
        parts.insert(0, machine["device_name"])
    return ", ".join(parts)


def _tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Return a table for each title: rows of the same model, length and device."""
    rows_of_tables: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        rows_of_tables.setdefault(f"{_title(row)} {row['vocab_size']}", []).append(row)
    tables = []
    for table_rows in rows_of_tables.values():
        texts = [_texts(row) for row in table_rows]
        tables.append(table_of_rows(_heads(table_rows[0]), texts, _title(table_rows[0])))
    return tables


def _title(row: Mapping[str, Any]) -> str:
    length = row["context_length"]
    compiled = ", compiled" if row["compile"] else ""
    return (
        f"{row['model']['name']}, T = {length}, {row['precision']} on {row['device']}{compiled}; "
        f"a step of {row['batch_windows']} x {length} tokens"
    )


def _heads(row: Mapping[str, Any]) -> list[str]:
    heads = ["encoding", "tokens/s", "time", "quartiles", "MB"]
    for evaluation in row["evaluation"]:
        heads += [f"tokens/s at {evaluation['window']}", f"time at {evaluation['window']}"]
    return heads


def _texts(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a row; `-` where nothing was measured."""
    training: Figures = row["training"]
    texts = [row["label"], *_speed(training)]
    if "ratio" in training:
        texts.append(f"{training['ratio_low']:.2f}-{training['ratio_high']:.2f}")
        texts.append(f"{training['tensor_bytes'] / 1e6:,.0f}")
    else:
        texts += ["-", "-"]
    for evaluation in row["evaluation"]:
        texts += _speed(evaluation)
    return texts


def _speed(figures: Figures) -> list[str]:
    """Return tokens a second, and the time relative to the first row."""
    if "ratio" not in figures:
        return ["-", "-"]
    return [f"{figures['tokens_per_second']:,.0f}", f"{figures['ratio']:.2f}x"]


def _notes(document: Mapping[str, Any]) -> list[str]:
    """Return why something was not measured, and what the columns mean."""
    notes = []
    for row in document["cells"]:
        phases = [("training", row["training"])]
        phases += [(f"evaluation at {figures['window']}", figures) for figures in row["evaluation"]]
        notes += [
            f"{row['label']}, {name}: {figures['reason']}" for name, figures in phases if "reason" in figures
        ]
    time_note = (
        "time: of a step or an evaluation at W tokens, relative to the first row: median (and quartiles)"
    )
    notes.append(f"{time_note} of {document['repeats']} pairs, taken in turns")
    notes.append("MB: of the tensors at a step's peak")
    return notes
