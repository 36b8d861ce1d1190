"""Numbers as the tables print them; also what decides whether two are a tie."""

from __future__ import annotations

import math

HUGE = 1e30


def printed(value: float, metric: str) -> str:
    """A loss or perplexity: three decimals (nats, bpb), two (ppl below 1000); `>1e30`, no overflow."""
    if value > HUGE:
        return ">1e30"
    if metric == "ppl" and value >= 1000:
        return f"{value:.0f}" if value < 1e6 else f"{value:.2e}"
    return f"{_no_minus_zero(value, decimals(metric)):.{decimals(metric)}f}"


def printed_change(value: float, metric: str) -> str:
    """The same with a sign."""
    if not math.isfinite(value) or abs(value) > HUGE:
        return ">+1e30" if value > 0 else "<-1e30"
    text = printed(abs(value), metric)
    return ("-" if _no_minus_zero(value, decimals(metric)) < 0 else "+") + text


def decimals(metric: str) -> int:
    """Digits after the point."""
    return 2 if metric == "ppl" else 3


def _no_minus_zero(value: float, digits: int) -> float:
    return round(value, digits) + 0.0
