"""What `posenc bench` measured: a table, Markdown, CSV or JSON. docs/performance.md has the schema."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.core.errors import visible
from posenc.report.escape import csv_text
from posenc.report.escape import markdown as safe

FIELDS = ["encoding", "model", "context_length", "batch_windows", "precision", "compile", "device", "phase"]
FIELDS += ["window", "median_seconds", "tokens_per_second", "ratio", "ratio_low", "ratio_high", "peak_bytes"]
FIELDS += [
    "peak_ratio",
    "tensor_bytes",
    "tensor_ratio",
    "mfu",
    "first_seconds",
    "parameters",
    "flops_per_token",
    "base",
    "reason",
]

Row = tuple[str, list[str], str | None]  # name, figures, and the reason where there are none


def render(document: dict[str, Any], format: str, width: int) -> str:
    """The document of posenc.cli.bench as text that ends with a newline; `width` in columns."""
    return FORMATS[format](document, width)


def _table(document: dict[str, Any], width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for line in _head(document):
        console.print(line)
    for cells in _groups(document["cells"]):
        for title, heads, rows in _parts(cells):
            console.print()
            console.print(Text(title, style="bold"))
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            table.add_column(heads[0], overflow="fold")
            for head in heads[1:]:
                table.add_column(head, justify="right", no_wrap=True)
            for name, figures, _ in rows:
                table.add_row(Text(visible(name)), *figures)
            console.print(table)
            for name, _, reason in rows:
                if reason is not None:
                    console.print(f"{visible(name)}: {visible(reason)}")
    console.print()
    for line in _notes(document):
        console.print(line)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _markdown(document: dict[str, Any], width: int) -> str:
    lines = [safe(line) for line in _head(document)]
    for cells in _groups(document["cells"]):
        for title, heads, rows in _parts(cells):
            lines += [
                "",
                f"**{safe(title)}**",
                "",
                _pipes(heads),
                _pipes(["---", *["---:"] * (len(heads) - 1)]),
            ]
            for name, figures, reason in rows:
                lines.append(_pipes([safe(name), *(figures if reason is None else [safe(reason)])]))
    return "\n".join([*lines, "", *(f"- {safe(line)}" for line in _notes(document))]) + "\n"


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _csv(document: dict[str, Any], width: int) -> str:
    """A line for each training and each evaluation window; unrounded, empty where there is nothing."""
    out = io.StringIO()
    writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
    writer.writeheader()
    for cell in document["cells"]:
        shared = {key: cell[key] for key in FIELDS if key in cell and key != "parameters"}
        shared |= {"encoding": cell["label"], "model": cell["model"]["name"]}
        shared["parameters"] = (cell["parameters"] or {}).get("total")
        phases = [("training", cell["training"]), *(("evaluation", one) for one in cell["evaluation"])]
        for phase, figures in phases:
            found = {key: figures[key] for key in FIELDS if key in figures}
            row = {"window": cell["context_length"], **shared, "phase": phase, **found}
            writer.writerow({k: csv_text(v) if isinstance(v, str) else v for k, v in row.items()})
    return out.getvalue()


def _json(document: dict[str, Any], width: int) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[dict[str, Any], int], str]] = {
    "table": _table,
    "markdown": _markdown,
    "csv": _csv,
    "json": _json,
}


def _head(document: dict[str, Any]) -> Iterator[str]:
    """The machine in a line or two, and its rate."""
    machine = document["machine"]
    name = machine["device_name"]
    where = f"{name}, " if name else ""
    threads = f"{machine['threads']} of {machine['cores']} cores"
    yield visible(
        f"{where}{machine['cpu']}, {threads}, torch {machine['versions']['torch']}, {document['date'][:10]}"
    )
    for rate in document["rates"]:
        if "flops_per_second" in rate:
            shape = " x ".join(map(str, rate["shape"]))
            speed = _flops(rate["flops_per_second"])
            yield f"matrix products in {rate['precision']} on {rate['device']}: {speed} ({shape})"


def _groups(cells: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    keys = ("model", "vocab_size", "context_length", "batch_windows", "precision", "compile", "device")
    for cell in cells:
        found.setdefault(json.dumps([cell[key] for key in keys]), []).append(cell)
    yield from found.values()


def _parts(cells: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[str], list[Row]]]:
    """Title, heads and rows: of the training, then of each evaluation window."""
    first = cells[0]
    name, length = first["model"]["name"], first["context_length"]
    base = f"/ {first['base']}"
    compiled = ", compiled" if first["compile"] else ""
    batch = f"{first['batch_windows']} x {length} tokens"
    how = f"{name}, T = {length}, {first['precision']} on {first['device']}{compiled}"
    heads = ["encoding", "ms", "tokens/s", f"time {base}", "quartiles", "MB", f"tensors {base}"]
    rows = [_row(cell, cell["training"]) for cell in cells]
    for (_, figures, _), cell in zip(rows, cells, strict=True):
        figures.append(_percent(cell["training"].get("mfu")))
    yield f"training: {how}; a step of {batch}", [*heads, "MFU"], rows
    for i, one in enumerate(first["evaluation"]):
        window = one["window"]
        title = (
            f"evaluation at {window} tokens ({window / length:g}x): {how}; the last {first['wanted']} scored"
        )
        yield title, heads, [_row(cell, cell["evaluation"][i]) for cell in cells]


def _row(cell: dict[str, Any], figures: dict[str, Any]) -> Row:
    """Figures as text; `-` where there are none."""
    found = ["-"] * 6
    if "median_seconds" in figures:
        found[:4] = [
            _short(1e3 * figures["median_seconds"]),
            f"{figures['tokens_per_second']:,.0f}",
            f"{figures['ratio']:.2f}x",
            f"{figures['ratio_low']:.2f}-{figures['ratio_high']:.2f}",
        ]
    if "peak_bytes" in figures:
        found[4] = _short(figures["peak_bytes"] / 1e6)
    if "tensor_ratio" in figures:
        found[5] = f"{figures['tensor_ratio']:.2f}x"
    return cell["label"], found, figures.get("reason")


def _notes(document: dict[str, Any]) -> Iterator[str]:
    base = ", ".join(dict.fromkeys(cell["base"] for cell in document["cells"]))
    yield f"ms: the median of {document['repeats']} samples, each right before or after one of {base}"
    yield f"time: the median of these pairs, and their quartiles; {base} beside itself shows the noise"
    yield "tokens/s of an evaluation: all tokens of the windows, scored or not"
    yield "MB: the peak of a process of its own, without Python; tensors: of what is held in tensors then"
    yield "MFU: 6 N + 12 L d T operations a token (attention with every key), as a share of the rate above"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.1f}%"


def _flops(value: float) -> str:
    return f"{value / 1e12:,.0f} TFLOP/s" if value >= 1e13 else f"{value / 1e9:,.0f} GFLOP/s"
