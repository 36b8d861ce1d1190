"""Measure where positions come in: drawn in training, added at the input, turning queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, float64
from posenc.encodings.sum import Composed
from posenc.report.pictures.panels import Arrows, Curves, Line, Map, Numbers, Panel
from posenc.report.pictures.sampling import (
    DISTANCE,
    FAR,
    MOST_ROWS,
    POSITION,
    array,
    chance,
    distances,
    marks,
    multiple,
    some,
    steps,
)

DRAWS = 5  # of positions in training
VECTORS = 64  # random queries whose scores are averaged
ARROWS = 9


def drawn_panels(encoding: Encoding) -> list[Panel]:
    """Draw positions of a window of T tokens as training does."""
    length = encoding.shape.train_length
    generator, at = chance("positions"), steps(length - 1)
    draws = [encoding.positions(length, True, generator)[at] for _ in range(DRAWS)]
    lines = [Line(f"draw {i + 1}", array(at), array(drawn)) for i, drawn in enumerate(draws)]
    lines.append(Line("contiguous", array(at), array(at), reference=True))
    title, here = "Positions drawn in training", marks(encoding, far=False)
    return [Curves(title, "index in the window", POSITION, lines, brief=True, y_marks=here)]


# Added at the input


def embed_panels(encoding: Encoding) -> list[Panel]:
    """Measure the vectors of positions, and their inner products before and after random projections."""
    length, width = encoding.shape.train_length, encoding.shape.d_model
    reach = _reach(encoding)
    pos = steps(reach - 1, 2 * MOST_ROWS)
    rows = added(encoding, pos, reach)  # (n, d)
    within = pos[pos < length]
    by_window = not torch.allclose(added(encoding, within, length), rows[: len(within)], atol=1e-5)
    title = "Added at the input"
    title += f" (defined below {multiple(reach, length)})" if reach < FAR * length else ""
    title += f", in a window of {multiple(reach, length)}" if by_window else ""
    shown = {name: at for name, at in marks(encoding).items() if at <= reach}
    dimensions, heat = array(torch.arange(width)), array(rows).T
    stream = "added to the stream"
    panels: list[Panel] = [
        Map(title, POSITION, "dimension", stream, heat, array(pos), dimensions, marks=shown, brief=True)
    ]
    panels += _products(encoding, reach)
    return panels


def added(encoding: Encoding, pos: Tensor, window: int) -> Tensor:
    """Return what layer 0 adds to a stream of zeros at these positions of a window, (n, d_model) float32.

    Of the window only these and its last position are there, increasing, as an encoding may suppose.
    """
    present = torch.cat((pos, torch.tensor([window - 1]))).unique()
    rows = encoding.embed(torch.zeros(1, len(present), encoding.shape.d_model), present, 0)[0]
    return rows[torch.searchsorted(present, pos)]


def _products(encoding: Encoding, reach: int) -> list[Panel]:
    """Multiply the vectors at t and t + r, as they are and as queries and keys made at random."""
    shape, length = encoding.shape, encoding.shape.train_length
    half = max(1, min(length, reach) // 2)
    starts = [t for t in (length // 2, length, 2 * length, 4 * length) if half <= t < reach - half]
    r = torch.arange(-half, half + 1)
    generator = chance("projections")
    w_q, w_k = (torch.randn(shape.d_model, shape.head_dim, generator=generator) for _ in range(2))
    plain, projected = [], []
    for t in starts or [min(half, reach - 1)]:
        at = (t + r)[(t + r >= 0) & (t + r < reach)]
        name, x = f"t = {multiple(t, length)}", array(at - t)
        key, query = added(encoding, at, reach), added(encoding, torch.tensor([t]), reach)
        plain.append(Line(name, x, array((query @ key.T)[0])))
        score = (query @ w_q) @ (key @ w_k).T / (shape.d_model * shape.head_dim**0.5)
        projected.append(Line(name, x, array(score[0])))
    offset, title = "offset r in tokens", "The same after random projections W_q, W_k"
    return [
        Curves("PE(t) · PE(t+r)", offset, "inner product", plain, ordered=True, brief=True),
        Curves(title, offset, "score (nats)", projected, ordered=True),
    ]


def _reach(encoding: Encoding) -> int:
    """Return the most positions, up to 8 T, that the encoding has vectors for."""
    length = encoding.shape.train_length
    for times in (FAR, 4, 2):
        try:
            added(encoding, torch.tensor([0]), times * length)
        except ValueError:
            continue
        return times * length
    return length


# Turned


def rotation_panels(encoding: Encoding, before: Encoding | None = None) -> list[Panel]:
    """Measure a `rotate` hook; frequencies where it says which it has.

    `before`: as trained, in grey where an extension has changed it.
    """
    layer = _turning_layer(encoding)
    theta = _frequencies(encoding)
    panels: list[Panel] = []
    if theta is not None and bool((theta > 0).any()):
        trained = None if before is None else _frequencies(before)
        panels += [_wavelengths(encoding, theta, trained), _turns(encoding, theta), _arrows(theta)]
    if layer is not None:
        panels.append(_self_score(encoding, layer, before))
    return panels


def _frequencies(encoding: Encoding) -> Tensor | None:
    """Return radians a token of each pair, (pairs,) float64, where the encoding or a part of it has them."""
    if isinstance(encoding, Composed):
        return next((theta for part in encoding.parts if (theta := _frequencies(part)) is not None), None)
    having = getattr(encoding, "frequencies", None) if "rotate" in encoding.hooks else None
    return float64(having(torch.device("cpu"))) if callable(having) else None


def _turning_layer(encoding: Encoding) -> int | None:
    """Return the first layer in which something is turned."""
    shape = encoding.shape
    x, pos = torch.ones(1, shape.n_heads, 2, shape.head_dim), torch.tensor([1, 3])
    for layer in range(shape.n_layers):
        q, _ = encoding.rotate(x, x, pos, pos, layer)
        if q.shape != x.shape or not torch.equal(q, x):
            return layer
    return None


def _wavelengths(encoding: Encoding, theta: Tensor, trained: Tensor | None) -> Curves:
    """Draw 2 pi / theta of each pair against T; in grey those of `trained` where they are others."""
    turned = theta > 0
    pair, length = torch.arange(len(theta)), 2 * math.pi / theta.where(turned, 1.0)
    short = turned & (length <= encoding.shape.train_length)
    groups = {"full turn within T": short, "none within T": turned & ~short}
    lines = [
        Line(f"{words}: {int(which.sum())}", array(pair[which]), array(length[which]))
        for words, which in groups.items()
        if bool(which.any())
    ]
    if trained is not None and not torch.equal(trained, theta):
        moved = trained > 0
        waves = array(2 * math.pi / trained[moved])
        lines.append(Line("as trained", array(torch.arange(len(trained))[moved]), waves, reference=True))
    still = int((~turned).sum())
    title = "Wavelength of each pair" + (f" ({still} of {len(theta)} are still)" if still else "")
    here, wave = marks(encoding), "wavelength in tokens"
    return Curves(
        title, "pair of numbers", wave, lines, "linear", "log", y_marks=here, points=True, brief=True
    )


def _turns(encoding: Encoding, theta: Tensor) -> Curves:
    """Draw how often each pair has gone round at a position."""
    pos = distances(FAR * encoding.shape.train_length)[1:]
    turned = torch.nonzero(theta > 0)[:, 0].tolist()
    chosen = [turned[i] for i in some(len(turned))]
    lines = [Line(f"pair {k}", array(pos), array(float64(pos) * theta[k] / (2 * math.pi))) for k in chosen]
    title, unit, here = "How far pairs have turned", "angle in turns", marks(encoding)
    return Curves(title, POSITION, unit, lines, "log", "log", here, {"one turn": 1.0}, ordered=True)


def _arrows(theta: Tensor) -> Arrows:
    """Draw one pair of a query at positions 0..8, the one whose turn is nearest to a twelfth a token."""
    angle = theta[(theta - math.pi / 6).abs().argmin()] * torch.arange(ARROWS)
    title = f"One pair at positions 0 to {ARROWS - 1}: {math.degrees(float(angle[1])):.0f}° a token"
    tips = torch.stack((angle.cos(), angle.sin()), dim=1)
    return Arrows(title, [str(t) for t in range(ARROWS)], array(tips))


def scores_with_itself(encoding: Encoding, r: Tensor, layer: int) -> tuple[Numbers, Numbers]:
    """Return mean and spread of the score of q at r with k = q at 0, for each head: (H, R) each."""
    shape = encoding.shape
    generator, scores = chance("rotation"), []
    for _ in range(VECTORS):
        x = torch.randn(1, 1, 1, shape.head_dim, generator=generator).expand(1, shape.n_heads, len(r), -1)
        q, k = encoding.rotate(x, x, r, r, layer)
        scores.append((q.double() * k[:, :, :1].double()).sum(-1)[0] * shape.head_dim**-0.5)
    every = torch.stack(scores)  # (vectors, H, R)
    return array(every.mean(0)), array(every.std(0, correction=0))


def _self_score(encoding: Encoding, layer: int, before: Encoding | None) -> Curves:
    """Draw how a key at distance r scores against a query of the same numbers; in grey as trained."""
    r = distances(FAR * encoding.shape.train_length)
    mean, spread = scores_with_itself(encoding, r, layer)
    same = bool((abs(mean - mean[:1]) < 1e-6).all())
    first = (f"mean of {VECTORS} random q" if same else "head 1") + " ± standard deviation"
    lines = [Line(first, array(r), mean[0], mean[0] - spread[0], mean[0] + spread[0])]
    lines += [Line(f"head {h + 1}", array(r), mean[h]) for h in some(len(mean))[1:] if not same]
    if before is not None:
        trained, _ = scores_with_itself(before, r, layer)
        if abs(trained - mean).max() > 1e-6:
            name = "as trained" if same else "as trained, head 1"
            lines.append(Line(name, array(r), trained[0], reference=True))
    alone = encoding.hooks & {"bias", "distance_bias", "scores", "weights"}
    title = "Score with an equal key, by rotation alone" if alone else "Score of a query with an equal key"
    here, unit = marks(encoding), "mean score (nats)"
    return Curves(title, DISTANCE, unit, lines, "symlog", "linear", here, {"": 0.0}, brief=True)
