"""The training losses that a run has logged: from its metrics.jsonl, or as many as a bundle keeps."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from posenc.results.own_files import read_own_file

if TYPE_CHECKING:
    from posenc.results.load import Run

LARGEST = 50_000_000  # bytes of a metrics.jsonl
MOST_KEPT = 200  # points in a bundle: a figure is some 400 pixels wide
DIGITS = 5
HUGE = 1e15  # neither tokens nor a loss: what is beyond is left out


def losses_of(run: Run) -> dict[float, float]:
    """Nats per token by tokens trained on, in the order of the tokens; empty where nothing was logged."""
    if run.losses is not None:
        return dict(sorted(run.losses.items()))
    try:
        text = read_own_file(run.path, "metrics.jsonl", LARGEST) or b""
    except (OSError, ValueError):
        return {}
    return dict(sorted(parse_losses(text).items()))


def parse_losses(text: bytes) -> dict[float, float]:
    """Loss by tokens of a metrics.jsonl; lines that are cut short or not numbers are left out."""
    found = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            tokens, loss = float(entry["tokens"]), float(entry["loss"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue
        if _is_a_number(tokens) and tokens >= 0 and _is_a_number(loss):
            found[tokens] = loss
    return found


def to_keep(losses: Mapping[float, float]) -> dict[str, list[float]]:
    """Columns for a bundle: all, or those nearest to MOST_KEPT evenly spread numbers of tokens.

    Nearest to a grid, so that of two seeds, one of which did not log a step, the same other steps are kept:
    a mean over seeds needs them at the same tokens.
    """
    every = sorted(losses)
    if len(every) > MOST_KEPT:
        grid = [every[-1] * (k + 1) / MOST_KEPT for k in range(MOST_KEPT)]
        every = sorted({_nearest(every, at) for at in grid})
    return {
        "tokens": [int(at) if at.is_integer() else at for at in every],
        "loss": [float(f"{losses[at]:.{DIGITS}g}") for at in every],
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
    numbers = all(type(one) in (int, float) and _is_a_number(one) for one in (*tokens, *losses))
    if not numbers or any(at < 0 for at in tokens):
        return {}
    return {float(at): float(loss) for at, loss in zip(tokens, losses, strict=True)}


def _is_a_number(value: float) -> bool:
    return abs(value) < HUGE  # False for NaN


def _nearest(every: list[float], at: float) -> float:
    """Of the sorted numbers the one nearest to `at`."""
    i = bisect_left(every, at)
    return min(every[max(i - 1, 0) : i + 1], key=lambda one: abs(one - at))
