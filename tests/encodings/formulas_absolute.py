"""Rows of the absolute encodings by another route than the code's: plain Python numbers, one position."""

import cmath
import math

import formulas


def counted(t: int, step: list[float]) -> list[float]:
    return [t * w for w in step]


def share_of_window(t: int, last: int, direction: list[float]) -> list[float]:
    return [(t / last if last else 0.0) * w for w in direction]


def binary_digits(t: int, table: list[list[float]]) -> list[float]:
    """Rows of `table`, the lowest bit's first, where the digits of t are 1."""
    digits = reversed(format(t, "b"))
    chosen = [row for digit, row in zip(digits, table, strict=False) if digit == "1"]
    assert t < 2 ** len(table)
    return [math.fsum(row[c] for row in chosen) for c in range(len(table[0]))]


def turning(t: int, frequencies: list[float], phases: list[float]) -> list[float]:
    """Sines and cosines as parts of e^(i (w t + f))."""
    row: list[float] = []
    for w, f in zip(frequencies, phases, strict=True):
        z = cmath.exp(1j * f) * cmath.exp(1j * w * t)
        row += [z.imag, z.real]
    return row


def hybrid(t: int, learned: list[float], width: int, base: float) -> list[float]:
    """The learned numbers, scaled as the tokens are, then the sinusoids of what is left of the width."""
    return [math.sqrt(width) * e for e in learned] + formulas.sinusoid(t, width - len(learned), base)


def joined(map_: list[list[float]], x: list[float], row: list[float]) -> list[float]:
    """W [x; row]."""
    both = [*x, *row]
    return [math.fsum(w * value for w, value in zip(line, both, strict=True)) for line in map_]
