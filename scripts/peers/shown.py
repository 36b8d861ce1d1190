"""Tables of scripts/bench_peers.py, for a terminal or as Markdown."""

from __future__ import annotations

import io
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110
HEADS = ("parameters", "ms a step", "tokens/s", "x best peer", "x same", "first loss", "last loss")


def text(document: dict[str, Any], format: str) -> str:
    """A table for each length, fastest first, with what was left out and the ratio that matters."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, markup=False, emoji=False)
    machine = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in document["peers"].items())
    console.print(
        f"{machine['device_name'] or machine['cpu']}, {machine['threads']} of {machine['cores']} cores, "
        f"torch {machine['versions']['torch']}; {packages}"
    )
    compiled = "compiled" if document["compile"] else "not compiled"
    for one in document["tables"]:
        windows = document["batch_tokens"] // one["length"]
        title = (
            f"{document['model']}, T = {one['length']}, {windows} x {one['length']} tokens a step, {compiled}"
        )
        console.print(
            f"\n{title}; {document['rounds']} rounds; losses at the first and last of {one['steps']} steps"
        )
        table = Table(
            "contestant",
            box=box.MARKDOWN if format == "markdown" else box.SIMPLE_HEAD,
            pad_edge=format == "markdown",
        )
        for head in HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        for row in sorted(one["rows"], key=lambda row: row["seconds"]):
            table.add_row(
                row["name"],
                f"{row['parameters']:,}",
                f"{1e3 * row['seconds']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                _times(row["against_best_peer"]),
                _times(row["against_same"]),
                f"{row['first_loss']:.2f}",
                f"{row['last_loss']:.2f}",
            )
        console.print(table)
        for name, reason in one["left_out"].items():
            console.print(f"left out: {name}: {reason}")
    clock = "CPU seconds of the process" if document["clock"] == "cpu" else "wall-clock time"
    console.print(f"\n{clock}, medians; x best peer: times as fast as the best setting of any peer,")
    console.print("x same: as the best peer with the same encoding; medians of the rounds' ratios")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
