"""Absolute encodings."""

from __future__ import annotations

from collections.abc import Callable

import formulas
import torch
from differences.common import BASE, FORMULA, HEAD_DIM, LONG, SHORT, largest

from posenc.encodings.sinusoidal import sinusoids


def sinusoidal_formula() -> float:
    rows = [formulas.sinusoid(int(t), HEAD_DIM, BASE) for t in LONG]
    return largest(sinusoids(LONG, HEAD_DIM, BASE), torch.tensor(rows, dtype=torch.float64))


def sinusoidal_gptj() -> float:
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    theirs = create_sinusoidal_positions(len(SHORT), HEAD_DIM)  # all sines, then all cosines
    ours = sinusoids(SHORT, HEAD_DIM, BASE)
    return largest(torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1), theirs)


def sinusoidal_x_transformers() -> float:
    from x_transformers.x_transformers import ScaledSinusoidalEmbedding

    embedding = ScaledSinusoidalEmbedding(HEAD_DIM)
    with torch.no_grad():
        theirs = embedding(torch.zeros(1, len(SHORT), HEAD_DIM)) / embedding.scale
    ours = sinusoids(SHORT, HEAD_DIM, BASE)
    return largest(torch.cat((ours[:, 0::2], ours[:, 1::2]), dim=-1), theirs)


COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {
    ("sinusoidal", FORMULA): (sinusoidal_formula, 1e-7),
    ("sinusoidal", "transformers GPT-J, 512 positions"): (sinusoidal_gptj, 1e-4),
    ("sinusoidal", "x-transformers, 512 positions"): (sinusoidal_x_transformers, 1e-4),
}
