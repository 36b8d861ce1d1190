"""Write what `posenc bench` measured: a table, Markdown, CSV or JSON. docs/performance.md has the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posenc.report.data import csv_text
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import markdown, terminal

FORMATS = ("table", "markdown", "csv", "json")
FIELDS = (
    *("encoding", "model", "context_length", "batch_windows", "precision", "compile", "device", "phase"),
    *("window", "median_seconds", "tokens_per_second", "ratio", "ratio_low", "ratio_high", "peak_bytes"),
    *("tensor_bytes", "tensor_ratio", "mfu", "first_seconds", "parameters"),
    *("flops_per_token", "base", "reason"),
)
ALIKE = ("model", "vocab_size", "context_length", "batch_windows", "precision", "compile", "device")


def render(document: Mapping[str, Any], format: str, width: int) -> str:
    """Return the document of posenc.cli.bench as text in one of FORMATS; `width` in columns."""
    if format == "json":
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if format == "csv":
        return csv_text([FIELDS, *_lines(document)])
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault(json.dumps([cell[key] for key in ALIKE]), []).append(cell)
    bases = ", ".join(dict.fromkeys(cell["base"] for cell in document["cells"]))
    notes = [
        *_reasons(document["cells"]),
        f"time: of a step or an evaluation at W tokens, relative to {bases}: median (and quartiles) of "
        f"{document['repeats']} pairs, taken in turns",
        f"memory: of a step's tensors, relative to {bases}; MB: its peak without Python",
        "MFU: 6 N + 12 L d T operations a token, relative to the fastest matrix product",
    ]
    tables = [
        Table(
            _heads(cells[0]), [[CellText(text) for text in _texts(cell)] for cell in cells], _title(cells[0])
        )
        for cells in groups.values()
    ]
    report = Report(_machine(document), "", tables, notes, gap=True)
    return markdown([report]) if format == "markdown" else terminal([report], width, color=False)


def _machine(document: Mapping[str, Any]) -> list[str]:
    machine = document["machine"]
    device = f"{machine['device_name']}, " if machine["device_name"] else ""
    threads = f"{machine['threads']} of {machine['cores']} cores, torch {machine['versions']['torch']}"
    lines = [f"{device}{machine['cpu']}, {threads}, {document['date'][:10]}"]
    for rate in document["rates"]:
        speed = f"{rate['flops_per_second'] / 1e9:,.0f} GFLOP/s"
        lines.append(f"matrix products in {rate['precision']} on {rate['device']}: {speed}")
    return lines


def _title(cell: Mapping[str, Any]) -> str:
    compiled = ", compiled" if cell["compile"] else ""
    how = f"{cell['model']['name']}, T = {cell['context_length']}, {cell['precision']} on {cell['device']}"
    return f"{how}{compiled}; a step of {cell['batch_windows']} x {cell['context_length']} tokens"


def _heads(cell: Mapping[str, Any]) -> list[str]:
    own = ["encoding", "tokens/s", "time", "quartiles", "MB", "memory", "MFU"]
    return own + [f"time at {one['window']}" for one in cell["evaluation"]]


def _texts(cell: Mapping[str, Any]) -> list[str]:
    """Return a row; `-` where nothing was measured."""
    training = cell["training"]
    texts = [
        cell["label"],
        _number("{:,.0f}", training, "tokens_per_second"),
        _number("{:.2f}x", training, "ratio"),
        _number("{:.2f}", training, "ratio_low") + "-" + _number("{:.2f}", training, "ratio_high"),
        _number("{:,.0f}", training, "peak_bytes", 1e6),
        _number("{:.2f}x", training, "tensor_ratio"),
        _number("{:.0%}", training, "mfu"),
    ]
    texts += [_number("{:.2f}x", one, "ratio") for one in cell["evaluation"]]
    return texts


def _number(form: str, figures: Mapping[str, Any], key: str, unit: float = 1.0) -> str:
    return "-" if figures.get(key) is None else form.format(figures[key] / unit)


def _reasons(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for cell in cells:
        evaluations = [(f"evaluation at {one['window']}", one) for one in cell["evaluation"]]
        for phase, figures in [("training", cell["training"]), *evaluations]:
            if figures.get("reason"):
                yield f"{cell['label']}, {phase}: {figures['reason']}"


def _lines(document: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield a line for each training and each evaluation window; unrounded, empty where there is nothing."""
    for cell in document["cells"]:
        shared = {key: cell[key] for key in FIELDS if key in cell}
        shared |= {"encoding": cell["label"], "model": cell["model"]["name"]}
        shared["parameters"] = (cell["parameters"] or {}).get("total")
        phases = [("training", cell["training"]), *(("evaluation", one) for one in cell["evaluation"])]
        for phase, figures in phases:
            row = {"window": cell["context_length"], **shared, "phase": phase, **figures}
            yield [row.get(key) for key in FIELDS]
