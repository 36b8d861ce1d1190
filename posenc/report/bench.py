"""Write what `posenc bench` measured: a table, Markdown, CSV or JSON. docs/performance.md has the schema."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.core.errors import visible
from posenc.report.data import csv_text

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
    paragraphs = [_lines_of(_machine(document), width)]
    for cells in groups.values():
        rows = [_heads(cells[0]), *map(_texts, cells)]
        drawn = _markdown(rows) if format == "markdown" else _terminal(rows, width)
        paragraphs += [_lines_of([_title(cells[0])], width), drawn, _lines_of(_reasons(cells), width)]
    bases = ", ".join(dict.fromkeys(cell["base"] for cell in document["cells"]))
    notes = [
        f"time: of a step or an evaluation at W tokens, relative to {bases}: median (and quartiles) of "
        f"{document['repeats']} pairs, taken in turns",
        f"memory: of a step's tensors, relative to {bases}; MB: its peak without Python",
        "MFU: 6 N + 12 L d T operations a token, relative to the fastest matrix product",
    ]
    return "\n\n".join(filter(None, [*paragraphs, _lines_of(notes, width)])) + "\n"


def _lines_of(texts: Iterable[str], width: int) -> str:
    return "\n".join(textwrap.fill(visible(text), width, subsequent_indent="  ") for text in texts)


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


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *others = [[visible(text).replace("|", "\\|") for text in row] for row in rows]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _terminal(rows: Sequence[Sequence[str]], width: int) -> str:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(rows[0][0], overflow="fold", min_width=8)
    for head in rows[0][1:]:
        table.add_column(head, justify="right", min_width=max(map(len, head.split())))
    for name, *others in rows[1:]:
        table.add_row(Text(visible(name)), *others)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


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
