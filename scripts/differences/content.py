"""Encodings by content: what they add to the score, or make of it, for a query at position 65536."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from differences.common import FORMULA, HEAD_DIM, LONG, SHORT, encoding, largest
from torch import Tensor

from posenc.encodings.base import Encoding

FAR = int(LONG[-1]) + 1
KEYS = FAR - 1 - LONG  # at the distances of LONG


def filled(name: str, heads: int = 1, **params: Any) -> Encoding:
    """Parameters of the size of a start, the same every time."""
    made = encoding(name, heads, **params)
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=made.shape.d_model**-0.5, generator=generator)
    return made


def normal(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def scored(made: Encoding, s: Tensor, x: Tensor | None = None, q: Tensor | None = None) -> Tensor:
    """Scores (H, T, S) of the last tokens of one text."""
    pos = torch.arange(s.shape[-1])
    q = s if q is None else q
    state: object = None
    if x is not None:
        state = made.prepare(x, x, x, 0)
    elif "prepare" in made.hooks:  # what it prepares is of the queries; the window is that of the scores
        state = (made.prepare(q, q, q, 0)[0], s.shape[-1])
    return made.scores(s, q, q, pos[-s.shape[-2] :], pos, state, 0)[0]


def exactly(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def suffix_sums(terms: list[float]) -> list[float]:
    """Exact sums of the terms from each of KEYS on, the key itself too."""
    return [math.fsum(terms[int(j) :]) for j in KEYS]


def fox_formula() -> float:
    made, x = filled("fox"), normal(1, FAR, HEAD_DIM)
    made.get_parameter("offset").data.fill_(5.0)  # gates near 1, so that the far past still counts
    z = x[0].double() @ made.get_parameter("gate")[0, 0].double() + 5
    gates = [math.log(1 / (1 + math.exp(-a))) for a in z.tolist()]
    sums = suffix_sums(gates)
    want = [total - gates[int(j)] for total, j in zip(sums, KEYS, strict=True)]  # without the key's own
    return largest(scored(made, torch.zeros(1, 1, 1, FAR), x)[0, 0, KEYS], exactly(want))


def fox_x_transformers() -> float:
    from x_transformers.x_transformers import DataDependentAlibi

    made, x, heads = filled("fox", 8), normal(1, len(SHORT), 8 * HEAD_DIM), 8
    theirs = DataDependentAlibi(8 * HEAD_DIM, heads)
    linear = theirs.to_forget_gates[0]
    linear.weight.data.copy_(made.get_parameter("gate")[0])
    linear.bias.data.copy_(made.get_parameter("offset")[0])
    with torch.no_grad():
        want = theirs(x)[0].tril()
    return largest(scored(made, torch.zeros(1, heads, len(SHORT), len(SHORT)), x).tril(), want)


def cable_formula() -> float:
    made, x = filled("cable"), normal(1, FAR, HEAD_DIM)
    made.get_parameter("slope").data.div_(100)  # so that the far past still counts
    slopes = [max(a, 0.0) for a in (x[0].double() @ made.get_parameter("slope")[0, 0].double()).tolist()]
    gain = math.log(1 + math.exp((x[0, -1].double() @ made.get_parameter("gain")[0, 0].double()).item()))
    sums = suffix_sums(slopes)
    want = [-gain * (total - slopes[int(j)]) for total, j in zip(sums, KEYS, strict=True)]
    return largest(scored(made, torch.zeros(1, 1, 1, FAR), x)[0, 0, KEYS], exactly(want))


def stick_breaking_formula() -> float:
    made, z = filled("stick_breaking", remainder="self"), normal(FAR) - 9  # so that the far past gets a share
    shares = [1 / (1 + math.exp(-a)) for a in z.tolist()]
    left, want = 1.0, [0.0] * FAR
    for j in range(FAR - 2, -1, -1):
        want[j] = left * shares[j]
        left *= 1 - shares[j]
    want[-1] = left
    ours = made.weights(z[None, None, None], torch.ones(1, FAR, dtype=torch.bool), 0)[0, 0, 0]
    return largest(ours, exactly(want))


def cope_formula() -> float:
    made, z, q = filled("cope", p_max=64), normal(FAR) - 8, normal(1, 1, 1, HEAD_DIM)
    positions = suffix_sums([1 / (1 + math.exp(-a)) for a in z.tolist()])
    at_whole = (made.get_parameter("table")[0].double() @ q[0, 0, 0].double()).tolist()
    want = []
    for p, j in zip(positions, KEYS, strict=True):
        low = min(math.floor(p), 63)
        part = min(p, 64) - low
        want.append(z[j].item() + (1 - part) * at_whole[low] + part * at_whole[low + 1])
    return largest(scored(made, z[None, None, None], q=q)[0, 0, KEYS], exactly(want))


def cope_x_transformers() -> float:
    from x_transformers.x_transformers import CoPE

    made, q = filled("cope", 8, p_max=64), normal(1, 8, len(SHORT), HEAD_DIM)
    s = normal(1, 8, len(SHORT), len(SHORT), seed=2)
    future = torch.ones(len(SHORT), len(SHORT)).triu(1).bool()
    theirs = CoPE(HEAD_DIM, 8, 65)
    theirs.pos_emb.data.copy_(made.get_parameter("table")[0])
    with torch.no_grad():
        want = theirs(q, s.masked_fill(future, -torch.finfo(s.dtype).max))
    return largest((scored(made, s, q=q) - s[0]).tril(), want[0].tril())


def scale_invariant_formula() -> float:
    made, z = filled("scale_invariant"), normal(FAR)
    want = []
    for r, j in zip(LONG.tolist(), KEYS, strict=True):
        squared = 2 * (math.log(r / 10 + 1) + 0.5)
        want.append(math.sqrt(squared) * z[j].item() + 1 - squared)
    return largest(scored(made, z[None, None, None])[0, 0, KEYS], exactly(want))


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("fox", FORMULA): (fox_formula, 1e-4),  # sums reach -700, of which float32 has 6e-5
    ("fox", "x-transformers, 512 positions"): (fox_x_transformers, 2e-4),  # its sums are float32, to -400
    ("cable", FORMULA): (cable_formula, 1e-4),
    ("stick_breaking", FORMULA): (stick_breaking_formula, 1e-7),
    ("cope", FORMULA): (cope_formula, 1e-5),
    ("cope", "x-transformers, 512 positions"): (cope_x_transformers, 1e-5),
    ("scale_invariant", FORMULA): (scale_invariant_formula, 5e-6),
}
