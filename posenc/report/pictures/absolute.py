"""What an encoding adds at the input, and where its positions come from."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.report.pictures.panels import Curves, Line, Map, Panel
from posenc.report.pictures.sampling import FAR, MOST_ROWS, POSITION, array, chance, marks, multiple, steps

DRAWS = 5
SIGNED = "offset r in tokens"


def embed_panels(encoding: Encoding) -> list[Panel]:
    """The vectors of the positions, and their inner products before and after random projections."""
    length, width = encoding.shape.train_length, encoding.shape.d_model
    reach = _reach(encoding)
    pos = steps(reach - 1, 2 * MOST_ROWS)
    rows = added(encoding, pos, reach)  # (n, d)
    shown = marks(encoding)
    within = pos[pos < length]
    by_window = not torch.allclose(added(encoding, within, length), rows[: len(within)], atol=1e-5)
    title = _what(encoding, reach) + (f", in a window of {multiple(reach, length)}" if by_window else "")
    panels: list[Panel] = [
        Map(
            title,
            POSITION,
            "dimension",
            "added to the stream",
            array(rows).T,
            array(pos),
            array(torch.arange(width)),
            marks={name: at for name, at in shown.items() if at <= reach},
            brief=True,
        )
    ]
    half = max(1, min(length, reach) // 2)
    starts = [t for t in (length // 2, length, 2 * length, 4 * length) if half <= t < reach - half]
    starts = starts or [min(half, reach - 1)]
    r = torch.arange(-half, half + 1)
    generator = chance("projections")
    projections = [torch.randn(width, encoding.shape.head_dim, generator=generator) for _ in range(2)]
    for title, y_label, maps in (
        ("PE(t) · PE(t+r)", "inner product", None),
        ("The same after random projections W_q, W_k", "score (nats)", projections),
    ):
        lines = []
        for t in starts:
            at = (t + r)[(t + r >= 0) & (t + r < reach)]
            key, query = added(encoding, at, reach), added(encoding, torch.tensor([t]), reach)
            if maps is not None:
                query, key = ((x @ w * width**-0.5) for x, w in zip((query, key), maps, strict=True))
                key = key * encoding.shape.head_dim**-0.5
            product = (query @ key.T)[0]
            lines.append(Line(f"t = {multiple(t, length)}", array(at - t), array(product)))
        panels.append(Curves(title, SIGNED, y_label, lines, ordered=True, brief=maps is None))
    if by_window:
        panels.append(_by_window(encoding, reach))
    return panels


def added(encoding: Encoding, pos: Tensor, window: int) -> Tensor:
    """What layer 0 adds to a stream of zeros at these positions of a window, (n, d_model) float32.

    Of the window only these and its last position are there, increasing, as an encoding may suppose.
    """
    present = torch.cat((pos, torch.tensor([window - 1]))).unique()
    zeros = torch.zeros(1, len(present), encoding.shape.d_model)
    rows = encoding.embed(zeros, present, 0)[0]
    return rows[torch.searchsorted(present, pos)]


def _by_window(encoding: Encoding, reach: int) -> Curves:
    """How large the vector of a position is in windows of several lengths."""
    length = encoding.shape.train_length
    lines = []
    for window in (length // 2, length, 2 * length, 4 * length, FAR * length):
        if 0 < window <= reach:
            pos = steps(window - 1)
            size = added(encoding, pos, window).norm(dim=-1)
            lines.append(Line(f"n = {multiple(window, length)}", array(pos), array(size)))
    return Curves(
        "Its size in windows of n tokens",
        POSITION,
        "length of what is added",
        lines,
        marks=marks(encoding, far=False),
        ordered=True,
        brief=True,
    )


def _reach(encoding: Encoding) -> int:
    """The most positions, up to 8 T, that the encoding has vectors for."""
    length = encoding.shape.train_length
    for times in (FAR, 4, 2):
        try:
            added(encoding, torch.tensor([0]), times * length)
        except ValueError:
            continue
        return times * length
    return length


def _what(encoding: Encoding, reach: int) -> str:
    length, layers = encoding.shape.train_length, encoding.shape.n_layers
    title = "Added at the input"
    if layers > 1 and bool(
        encoding.embed(torch.zeros(1, 2, encoding.shape.d_model), torch.arange(2), 1).any()
    ):
        title = "Added before block 1 of " + str(layers)
    return title if reach >= FAR * length else f"{title} (defined below {multiple(reach, length)})"


def positions_panels(encoding: Encoding) -> list[Panel]:
    """Positions of a window of T tokens as training draws them."""
    length = encoding.shape.train_length
    generator = chance("positions")
    lines = []
    at = steps(length - 1)
    for i in range(DRAWS):
        drawn = encoding.positions(length, True, generator)
        lines.append(Line(f"draw {i + 1}", array(at), array(drawn[at])))
    lines.append(Line("contiguous", array(at), array(at), reference=True))
    return [
        Curves(
            "Positions drawn in training",
            "index in the window",
            POSITION,
            lines,
            brief=True,
            y_marks=marks(encoding, far=False),
        )
    ]
