"""Numbers as text: losses as tables print them, and settings as text that can be compared."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from posenc.settings.base import flattened

EXACT = 2**53  # up to here a float holds every whole number
HUGE = 1e30  # perplexities beyond are printed as >1e30: their means and squares would overflow


def perplexity(nats: float) -> float:
    """Return exp(nats), infinite where that overflows."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def printed(value: float, metric: str, sign: str = "") -> str:
    """Return a loss or perplexity as tables print it: 1.234 (nats, bpb), 12.34 (ppl), `>1e30`."""
    if value > HUGE:
        return f">{sign}1e30"
    if value < -HUGE:
        return "<-1e30"
    # `z` prints a change of -0.0001 as +0.000, since -0.000 would look like a gain.
    if metric != "ppl":
        return f"{value:{sign}z.3f}"
    if abs(value) >= 1e6:
        return f"{value:{sign}.2e}"
    if abs(value) >= 1000:
        return f"{value:{sign}.0f}"
    return f"{value:{sign}z.2f}"


def printed_change(value: float, metric: str) -> str:
    """Return a change as `printed` does, with its sign."""
    return printed(value, metric, "+")


def as_text(value: object) -> str:
    """Return a value as short text: numbers up to 2^53 alike whether written 1000 or 1000.0."""
    if isinstance(value, str):
        return value
    if value is None:  # the common kinds first: 85,000 settings of 2,000 runs need no JSON encoder
        return "null"
    # Not isinstance: True is an int, too, and must become `true`.
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        # The digits of a larger float would be those of its rounding.
        is_whole = value.is_integer() and abs(value) <= EXACT
        return str(int(value) if is_whole else value)
    return json.dumps(value, sort_keys=True, default=str)


def flat_texts(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return nested mappings as one, from dotted keys to values as text (see `as_text`)."""
    return {key: as_text(value) for key, value in flattened(tree).items()}
