"""Write what `posenc bench` measured: a table, Markdown, CSV or JSON. docs/performance.md has the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from posenc.report.data import csv_text
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import markdown, terminal

FORMATS = ("table", "markdown", "csv", "json")
FIELDS = (
    *("encoding", "model", "context_length", "batch_windows", "precision", "compile", "device", "phase"),
    *("window", "median_seconds", "tokens_per_second", "ratio", "ratio_low", "ratio_high", "peak_bytes"),
    *("peak_ratio", "tensor_bytes", "tensor_ratio", "mfu", "first_seconds", "parameters"),
    *("flops_per_token", "base", "reason"),
)
ALIKE = ("model", "vocab_size", "context_length", "batch_windows", "precision", "compile", "device")


def render(document: dict[str, Any], format: str, width: int) -> str:
    """Return the document of posenc.cli.bench as text in one of FORMATS; `width` in columns."""
    match format:
        case "table":
            return terminal([report_of(document)], width, color=False)
        case "markdown":
            return markdown([report_of(document)])
        case "csv":
            return _csv(document)
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def report_of(document: dict[str, Any]) -> Report:
    """Return the machine, and a table for the training and each evaluation window of alike cells."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in document["cells"]:
        groups.setdefault(json.dumps([cell[key] for key in ALIKE]), []).append(cell)
    base = ", ".join(dict.fromkeys(cell["base"] for cell in document["cells"]))
    return Report(
        facts=list(_machine(document)),
        answer="",
        tables=[table for cells in groups.values() for table in _tables(cells)],
        gap=True,
        notes=[
            *_reasons(document["cells"]),
            f"ms: the median of {document['repeats']} samples, each right before or after one of {base}",
            f"time: the median of these pairs, and their quartiles; {base} beside itself shows the noise",
            "tokens/s of an evaluation: all tokens of the windows, scored or not",
            "MB: the peak of a process of its own, without Python; tensors: what tensors hold of it",
            "MFU: 6 N + 12 L d T operations a token (attention with every key), as a share of the rate above",
        ],
    )


def _reasons(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    for cell in cells:
        for one in (cell["training"], *cell["evaluation"]):
            if one.get("reason"):
                yield f"{cell['label']}: {one['reason']}"


def _machine(document: dict[str, Any]) -> Iterator[str]:
    machine = document["machine"]
    device = f"{machine['device_name']}, " if machine["device_name"] else ""
    threads = f"{machine['threads']} of {machine['cores']} cores, torch {machine['versions']['torch']}"
    yield f"{device}{machine['cpu']}, {threads}, {document['date'][:10]}"
    for rate in document["rates"]:
        if "flops_per_second" in rate:
            speed = f"{rate['flops_per_second'] / 1e9:,.0f} GFLOP/s"
            shape = " x ".join(map(str, rate["shape"]))
            yield f"matrix products in {rate['precision']} on {rate['device']}: {speed} ({shape})"


def _tables(cells: Sequence[dict[str, Any]]) -> Iterator[Table]:
    first = cells[0]
    length = first["context_length"]
    compiled = ", compiled" if first["compile"] else ""
    how = f"{first['model']['name']}, T = {length}, {first['precision']} on {first['device']}{compiled}"
    title = f"training: {how}; a step of {first['batch_windows']} x {length} tokens"
    yield _table(title, cells, [cell["training"] for cell in cells], mfu=True)
    for i, one in enumerate(first["evaluation"]):
        place = f"evaluation at {one['window']} tokens ({one['window'] / length:g}x)"
        title = f"{place}: {how}; the last {first['wanted']} scored"
        yield _table(title, cells, [cell["evaluation"][i] for cell in cells], mfu=False)


def _table(
    title: str, cells: Sequence[dict[str, Any]], figures: Sequence[dict[str, Any]], mfu: bool
) -> Table:
    base = f"/ {cells[0]['base']}"
    heads = ["ms", "tokens/s", f"time {base}", "quartiles", "MB", f"tensors {base}", "MFU"][: 7 if mfu else 6]
    names = [cell["label"] for cell in cells]
    return Table(
        heads=["encoding", *heads],
        rows=[
            [CellText(name), *(CellText(text) for text in _texts(one)[: len(heads)])]
            for name, one in zip(names, figures, strict=True)
        ],
        title=title,
    )


def _texts(figures: dict[str, Any]) -> list[str]:
    """Return the cells of a row; `-` where nothing was measured."""
    texts = ["-"] * 7
    if "median_seconds" in figures:
        texts[:4] = [
            _short(1e3 * figures["median_seconds"]),
            f"{figures['tokens_per_second']:,.0f}",
            f"{figures['ratio']:.2f}x",
            f"{figures['ratio_low']:.2f}-{figures['ratio_high']:.2f}",
        ]
    if "peak_bytes" in figures:
        texts[4] = _short(figures["peak_bytes"] / 1e6)
    if "tensor_ratio" in figures:
        texts[5] = f"{figures['tensor_ratio']:.2f}x"
    if figures.get("mfu") is not None:
        texts[6] = f"{100 * figures['mfu']:.{0 if figures['mfu'] >= 0.1 else 1}f}%"
    return texts


def _csv(document: dict[str, Any]) -> str:
    """Return a line for each training and each evaluation window; unrounded, empty where there is nothing."""
    rows = []
    for cell in document["cells"]:
        shared = {key: cell[key] for key in FIELDS if key in cell}
        shared |= {"encoding": cell["label"], "model": cell["model"]["name"]}
        shared["parameters"] = (cell["parameters"] or {}).get("total")
        phases = [("training", cell["training"]), *(("evaluation", one) for one in cell["evaluation"])]
        for phase, figures in phases:
            row = {"window": cell["context_length"], **shared, "phase": phase, **figures}
            rows.append([row.get(key) for key in FIELDS])
    return csv_text([FIELDS, *rows])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
