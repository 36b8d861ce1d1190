"""The training losses that a run has logged: from its metrics.jsonl, or as many as a bundle keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenc.results.load import Run

LARGEST = 50_000_000  # bytes of a metrics.jsonl
MOST_KEPT = 400  # points in a bundle, evenly spread: a figure is some 400 pixels wide
DIGITS = 5


def losses_of(run: Run) -> dict[float, float]:
    """Nats per token by tokens trained on, in the order of the tokens; empty where nothing was logged."""
    found = read_losses(run.path / "metrics.jsonl") if run.losses is None else run.losses
    return dict(sorted(found.items()))


def read_losses(path: Path) -> dict[float, float]:
    """Loss by tokens of a metrics.jsonl; lines that are cut short or not numbers are left out."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return {}
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            entry = json.loads(line)
            tokens, loss = float(entry["tokens"]), float(entry["loss"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue
        if math.isfinite(tokens) and math.isfinite(loss):
            found[tokens] = loss
    return found


def to_keep(losses: Mapping[float, float]) -> dict[str, list[float]]:
    """Columns for a bundle: MOST_KEPT points at most, the last one among them."""
    points = sorted(losses.items())
    every = math.ceil(len(points) / MOST_KEPT) or 1
    points = points[::-1][::every][::-1]
    return {
        "tokens": [int(at) if at.is_integer() else at for at, _ in points],
        "loss": [float(f"{loss:.{DIGITS}g}") for _, loss in points],
    }


def kept(columns: object) -> dict[float, float]:
    """What `to_keep` made, read from a stranger's bundle: empty for anything else."""
    if not isinstance(columns, dict):
        return {}
    tokens, losses = columns.get("tokens"), columns.get("loss")
    if not (
        isinstance(tokens, list) and isinstance(losses, list) and len(tokens) == len(losses) <= MOST_KEPT
    ):
        return {}
    if not all(isinstance(one, int | float) and abs(one) < 1e15 for one in (*tokens, *losses)):
        return {}
    return {float(at): float(loss) for at, loss in zip(tokens, losses, strict=True)}
