"""Scores of the rotary family once more, by another route than the code's: plain numbers, a pair at a time.

Each takes one query q and one key k (unturned) at the positions i and j and gives their product, before the
division by sqrt(D). A pair is a complex number, and the product of two vectors Re(a conj(b)).
"""

import cmath
import math

Vector = list[float]
TURN = 2 * math.pi


def pairs(x: Vector, layout: str) -> list[complex]:
    half = len(x) // 2
    if layout == "interleaved":
        return [complex(x[2 * k], x[2 * k + 1]) for k in range(half)]
    return [complex(x[k], x[k + half]) for k in range(half)]


def theta(k: int, width: int, base: float) -> float:
    """Radians a token of pair k of `width` numbers."""
    return math.exp(-2 * k / width * math.log(base))


def rope(q: Vector, k: Vector, i: int, j: int, base: float = 10000.0, layout: str = "interleaved") -> float:
    turned = [cmath.exp(1j * (i - j) * theta(n, len(q), base)) for n in range(len(q) // 2)]
    products = zip(pairs(q, layout), pairs(k, layout), turned, strict=True)
    return math.fsum((a * b.conjugate() * turn).real for a, b, turn in products)


def xpos(
    q: Vector,
    k: Vector,
    i: int,
    j: int,
    base: float = 10000.0,
    layout: str = "interleaved",
    scale_base: float = 512.0,
) -> float:
    total = []
    for n, (a, b) in enumerate(zip(pairs(q, layout), pairs(k, layout), strict=True)):
        z = (n / (len(q) / 2) + 0.4) / (1 + 0.4)
        turned = a * b.conjugate() * cmath.exp(1j * (i - j) * theta(n, len(q), base))
        total.append(turned.real * math.exp((i - j) / scale_base * math.log(z)))
    return math.fsum(total)


def hope(
    q: Vector,
    k: Vector,
    i: int,
    j: int,
    train_length: int,
    base: float = 10000.0,
    layout: str = "interleaved",
    turns: float = 1.0,
) -> float:
    total = []
    for n, (a, b) in enumerate(zip(pairs(q, layout), pairs(k, layout), strict=True)):
        done = train_length * theta(n, len(q), base) / TURN  # turns within the training length
        angle = (i - j) * theta(n, len(q), base) if done >= turns else 0.0
        total.append((a * b.conjugate() * cmath.exp(1j * angle)).real)
    return math.fsum(total)


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


def pope(q: Vector, k: Vector, i: int, j: int, delta: Vector, base: float = 10000.0) -> float:
    width = len(q)
    return math.fsum(
        softplus(q[c]) * softplus(k[c]) * math.cos((j - i) * math.pow(base, -c / width) + delta[c])
        for c in range(width)
    )
