"""Tables from files that other scripts wrote, and what `posenc train` prints at its end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from gpu_tables import TABLES
from markdown_table import MarkdownTable
from posenc_output import RECORDS

from posenc.report.end_of_run import show_runs
from posenc.results import load_runs


def altered_models(file: str) -> str:
    """Return trained models, altered at one place: the loss at T, and the change from it (causes.py)."""
    losses_by_encoding = json.loads((RECORDS / file).read_text(encoding="utf-8"))
    table = MarkdownTable(["encoding", "changed", "T", "2x", "4x", "8x"], left=[0, 1])
    for encoding, losses_by_change in losses_by_encoding.items():
        for what, losses in losses_by_change.items():
            at_train_length, *beyond = losses
            changes = [f"{loss - at_train_length:+.3f}" for loss in beyond]
            table.add(encoding, what, f"{at_train_length:.3f}", *changes)
    return table.text()


def speed_beside_peers(file: str) -> str:
    """Return other packages' speed over posenc's: of a training step and of a forward pass (bench/peers.py).

    A row is a model and a length. `tokens/s` is posenc's.
    """
    cells = json.loads((RECORDS / file).read_text(encoding="utf-8"))["cells"]
    speed_by_row: dict[str, str] = {}
    ratios_by_row: dict[str, dict[str, str]] = {}
    for cell in cells:
        row = f"{cell['model']['name']}, T = {cell['context_length']}"
        if cell["compile"]:
            row += ", compiled"
        if row not in speed_by_row:  # posenc's own cell comes first
            speed_by_row[row] = f"{cell['training']['tokens_per_second'] / 1000:.1f}k"
        package = cell["label"].partition(",")[0]
        ratios = [_ratio(cell[phase]) for phase in ("training", "forward")]
        ratios_by_row.setdefault(row, {})[package] = ", ".join(ratios)
    packages = list(dict.fromkeys(package for ratios in ratios_by_row.values() for package in ratios))
    table = MarkdownTable(["step, forward pass", "tokens/s", *packages])
    for row, ratios_by_package in ratios_by_row.items():
        table.add(row, speed_by_row[row], *(ratios_by_package.get(package, "-") for package in packages))
    return table.text()


def _ratio(figures: dict[str, Any]) -> str:
    ratio = figures.get("ratio")
    return "-" if ratio is None else f"{ratio:.2f}"


def plan_beside_measured(file: str) -> str:
    """Return minutes and memory of evaluations: what `--dry-run` said, and what they took."""
    evaluations = json.loads((RECORDS / file).read_text(encoding="utf-8"))["evaluations"]
    heads = ["evaluation", "planned, minutes", "processor", "clock", "planned, MB", "peak, MB"]
    table = MarkdownTable(heads)
    for evaluation in evaluations:
        planned, measured = evaluation["planned"], evaluation["measured"]
        table.add(
            evaluation["what"],
            f"{planned['minutes']:g}" if planned else "-",
            f"{measured['processor_seconds'] / 60:.1f}",
            f"{measured['wall_seconds'] / 60:.1f}",
            f"{planned['megabytes']:,}" if planned else "-",
            f"{measured['megabytes']:,}",
        )
    return table.text()


def gpu_table(file: str, name: str) -> str:
    """Return a table of a visit to a GPU by its name in gpu_tables.TABLES (check_gpu.py)."""
    items = json.loads((RECORDS / file).read_text(encoding="utf-8"))["items"]
    heads, rows = TABLES[name](items)
    table = MarkdownTable(heads)
    for row in rows:
        table.add(*row)
    return table.text()


def end_of_training(folder: str, overrides: list[str]) -> str:
    """Return what `posenc train` prints at the end of the only run of a folder, as in a terminal."""
    (run,) = load_runs([RECORDS / folder])
    run.status["overrides"] = overrides  # a bundle does not hold what was typed
    stream = io.StringIO()
    show_runs([run], stream, saved=Path("runs/default") / run.name)
    return f"```text\n{stream.getvalue().strip()}\n```\n"
