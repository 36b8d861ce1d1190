"""Queries and keys that are turned: frequencies, wavelengths, a pair of numbers, the score over r."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, float64
from posenc.encodings.sum import Composed
from posenc.report.pictures.panels import Arrows, Curves, Line, Numbers, Panel
from posenc.report.pictures.sampling import DISTANCE, FAR, POSITION, array, chance, distances, marks, some

VECTORS = 64  # random queries whose scores are averaged
ARROWS = 9
SPREAD = " ± standard deviation"


def rotation_panels(encoding: Encoding, before: Encoding | None = None) -> list[Panel]:
    """Panels of a `rotate` hook; those of frequencies where it says which it has.

    `before`: as trained, in grey where an extension has changed it.
    """
    layer = turning_layer(encoding)
    theta = frequencies(encoding)
    trained = None if before is None else frequencies(before)
    panels: list[Panel] = []
    if theta is not None and bool((theta > 0).any()):
        panels += [wavelengths(encoding, theta, trained), _turns(encoding, theta)]
    if layer is not None:
        panels += _arrows(encoding, layer)
        panels.append(self_score(encoding, layer, before))
    return panels


def frequencies(encoding: Encoding) -> Tensor | None:
    """Radians a token of each pair, (pairs,) float64, where the encoding or a part of it has them."""
    for part in encoding.parts if isinstance(encoding, Composed) else (encoding,):
        if isinstance(part, Composed):
            found = frequencies(part)
            if found is not None:
                return found
        having = getattr(part, "frequencies", None) if "rotate" in part.hooks else None
        if callable(having):
            return float64(having(torch.device("cpu")))
    return None


def turning_layer(encoding: Encoding) -> int | None:
    """The first layer in which something is turned."""
    shape = encoding.shape
    x = torch.ones(1, shape.n_heads, 2, shape.head_dim)
    pos = torch.tensor([1, 3])
    for layer in range(shape.n_layers):
        q, _ = encoding.rotate(x, x, pos, pos, layer)
        if q.shape != x.shape or not torch.equal(q, x):
            return layer
    return None


def wavelengths(encoding: Encoding, theta: Tensor, trained: Tensor | None = None) -> Curves:
    """2 pi / theta of each pair against T; grey those of `trained` where they are others."""
    pair = torch.arange(len(theta))
    turned = theta > 0
    length = 2 * math.pi / theta.where(turned, 1.0)
    short = turned & (length <= encoding.shape.train_length)
    groups = [("full turn within T", short), ("none within T", turned & ~short)]
    lines = [
        Line(f"{words}: {int(which.sum())}", array(pair[which]), array(length[which]))
        for words, which in groups
        if bool(which.any())
    ]
    if trained is not None and not torch.equal(trained, theta):
        moved = trained > 0
        pairs = torch.nonzero(moved)[:, 0]
        lines.append(Line("as trained", array(pairs), array(2 * math.pi / trained[moved]), reference=True))
    still = int((~turned).sum())
    return Curves(
        "Wavelength of each pair" + (f" ({still} of {len(theta)} are still)" if still else ""),
        "pair of numbers",
        "wavelength in tokens",
        lines,
        y_scale="log",
        y_marks=marks(encoding),
        points=True,
        brief=True,
    )


def _turns(encoding: Encoding, theta: Tensor) -> Curves:
    """How often each pair has gone round at a position."""
    pos = distances(FAR * encoding.shape.train_length)[1:]
    turned = torch.nonzero(theta > 0)[:, 0].tolist()
    chosen = [turned[i] for i in some(len(turned))]
    lines = [Line(f"pair {k}", array(pos), array(float64(pos) * theta[k] / (2 * math.pi))) for k in chosen]
    return Curves(
        "How far pairs have turned",
        POSITION,
        "angle in turns",
        lines,
        x_scale="log",
        y_scale="log",
        marks=marks(encoding),
        y_marks={"one turn": 1.0},
        ordered=True,
    )


def _arrows(encoding: Encoding, layer: int) -> list[Panel]:
    """One pair of a query at positions 0..8, the one that turns nearest to a twelfth a token."""
    tips, step = turned_pairs(encoding, layer, ARROWS)
    if not len(tips):
        return []
    best = int((step.abs() - math.pi / 6).abs().argmin())
    degrees = math.degrees(float(step[best]))
    title = f"One pair at positions 0 to {ARROWS - 1}: {abs(degrees):.0f}° a token"
    return [Arrows(title, [str(t) for t in range(ARROWS)], array(tips[best]))]


def turned_pairs(encoding: Encoding, layer: int, count: int) -> tuple[Tensor, Tensor]:
    """Each number of a query alone, turned: tips (pairs, count, 2), and the angle from 0 to 1 (pairs,).

    A number whose change does not lie in one plane is left out.
    """
    width = encoding.shape.head_dim
    pos = torch.arange(count)
    one = torch.eye(width)[:, None, None, :].expand(-1, encoding.shape.n_heads, count, -1)  # (D, H, n, D)
    zero = torch.zeros_like(one)
    q, _ = encoding.rotate(one, one, pos, pos, layer)
    still, _ = encoding.rotate(zero, zero, pos, pos, layer)
    moved = (q - still)[:, 0]  # (D, n, D'): what the number itself became
    tips, angles = [], []
    for own in moved:
        used = torch.nonzero(own.abs().amax(0) > 1e-6)[:, 0]
        if len(used) != 2:
            continue
        pair = own[:, used] / own[0].norm()
        turn = torch.atan2(pair[:, 1], pair[:, 0])
        tips.append(pair)
        angles.append((turn[1] - turn[0] + math.pi) % (2 * math.pi) - math.pi)
    if not tips:
        return torch.empty(0, count, 2), torch.empty(0)
    return torch.stack(tips), torch.stack(angles)


def scores_with_itself(encoding: Encoding, r: Tensor, layer: int) -> tuple[Numbers, Numbers]:
    """Mean and spread of the score of q at r with k = q at 0, for each head: (H, R) each."""
    shape = encoding.shape
    generator = chance("rotation")
    total = torch.zeros(shape.n_heads, len(r), dtype=torch.float64)
    squares = torch.zeros_like(total)
    for _ in range(VECTORS):
        x = torch.randn(1, 1, 1, shape.head_dim, generator=generator)
        x = x.expand(1, shape.n_heads, len(r), -1)
        q, k = encoding.rotate(x, x, r, r, layer)
        s = (q.double() * k[:, :, :1].double()).sum(-1)[0] * shape.head_dim**-0.5  # (H, R)
        total += s
        squares += s.square()
    mean = total / VECTORS
    return array(mean), array((squares / VECTORS - mean.square()).clamp_min(0).sqrt())


def self_score(encoding: Encoding, layer: int, before: Encoding | None = None) -> Curves:
    """How much a key at distance r scores against a query of the same numbers; grey as trained."""
    r = distances(FAR * encoding.shape.train_length)
    mean, spread = scores_with_itself(encoding, r, layer)
    same = bool((abs(mean - mean[:1]) < 1e-6).all())
    heads = [0] if same else some(len(mean))
    lines = [
        Line(
            (f"mean of {VECTORS} random q" if same else f"head {h + 1}") + SPREAD * (h == 0),
            array(r),
            mean[h],
            mean[h] - spread[h] if h == 0 else None,
            mean[h] + spread[h] if h == 0 else None,
        )
        for h in heads
    ]
    if before is not None:
        trained, _ = scores_with_itself(before, r, layer)
        if abs(trained - mean).max() > 1e-6:
            name = "as trained" if same else "as trained, head 1"
            lines.append(Line(name, array(r), trained[0], reference=True))
    alone = encoding.hooks & {"bias", "distance_bias", "scores", "weights"}
    return Curves(
        "Score with an equal key, by rotation alone" if alone else "Score of a query with an equal key",
        DISTANCE,
        "mean score (nats)",
        lines,
        x_scale="symlog",
        marks=marks(encoding),
        y_marks={"": 0.0},
        brief=True,
    )
