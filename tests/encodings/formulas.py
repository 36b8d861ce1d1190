"""The papers' formulas once more, by another route than the code's: plain Python numbers, no torch."""

import cmath
import math


def rope(x: list[float], t: int, base: float, layout: str, fraction: float, drop_low: float) -> list[float]:
    """One vector turned at position t: every pair is a complex number times e^(i t theta_k)."""
    width = round(len(x) * fraction)
    pairs = width // 2
    turning = pairs - round(pairs * drop_low)
    out = list(x)
    for k in range(turning):
        a, b = (2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + pairs)
        turned = complex(x[a], x[b]) * cmath.exp(1j * t * math.exp(-2 * k / width * math.log(base)))
        out[a], out[b] = turned.real, turned.imag
    return out


def sinusoid(t: int, width: int, base: float) -> list[float]:
    """Row t of the table: sines on even columns, cosines on odd ones."""
    return [
        (math.sin if c % 2 == 0 else math.cos)(t / math.pow(base, (c - c % 2) / width)) for c in range(width)
    ]


def alibi_slope(head: int, heads: int) -> float:
    """Slope of head 1..H as the paper's text has it: geometric, else filled up from twice the power."""
    power = 1
    while power * 2 <= heads:
        power *= 2
    if head <= power:
        return math.exp2(-8 * head / power)
    return math.exp2(-8 * (2 * (head - power) - 1) / (2 * power))


def t5_bucket(r: int, buckets: int, max_distance: int) -> int:
    """Bucket of the distance r, in whole numbers only.

    exact + floor(h log(r/exact) / log(max/exact)), h = buckets - exact, is the largest exact + m with
    (max/exact)^m <= (r/exact)^h.
    """
    exact = buckets // 2
    h = buckets - exact
    if r < exact:
        return r
    m = 0
    while m < h - 1 and max_distance ** (m + 1) * exact**h <= r**h * exact ** (m + 1):
        m += 1
    return exact + m
