"""Absolute encodings."""

from __future__ import annotations

from collections.abc import Callable

import formulas
import formulas_absolute
import torch
from differences.common import BASE, FORMULA, HEAD_DIM, LONG, SHORT, encoding, largest
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.encodings.families.absolute import Absolute, sinusoids

LIMIT = int(LONG[-1]) + 1


def drawn(name: str, **params: object) -> Absolute:
    """One head's width, every parameter at its start."""
    made: Encoding = encoding(name, 1, **params)
    assert isinstance(made, Absolute)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            made.initialize(key, parameter, generator_for(0, key))
    return made


def against_formula(made: Absolute, row: Callable[[int], list[float]]) -> float:
    want = torch.tensor([row(int(t)) for t in LONG], dtype=torch.float64)
    return largest(made.rows(LONG, 0).detach(), want)


def first(made: Absolute, name: str) -> Tensor:
    """A parameter of the only place, in float64."""
    return made.get_parameter(name).detach()[0].double()


def integer_formula() -> float:
    made = drawn("integer")
    return against_formula(made, lambda t: formulas_absolute.counted(t, first(made, "step").tolist()))


def normalized_formula() -> float:
    made = drawn("normalized")
    direction, last = first(made, "direction").tolist(), int(LONG[-1])
    return against_formula(made, lambda t: formulas_absolute.share_of_window(t, last, direction))


def binary_formula() -> float:
    made = drawn("binary", bits=17)
    table = first(made, "table").tolist()
    return against_formula(made, lambda t: formulas_absolute.binary_digits(t, table))


def learned_x_transformers() -> float:
    from x_transformers.x_transformers import AbsolutePositionalEmbedding

    made, theirs = drawn("learned"), AbsolutePositionalEmbedding(HEAD_DIM, 128)
    pos = SHORT[:128]
    with torch.no_grad():
        theirs.emb.weight.copy_(made.get_parameter("table")[0] * HEAD_DIM**0.5)  # scaled by d^-1/2 there
        return largest(made.rows(pos, 0), theirs(torch.zeros(1, 128, HEAD_DIM)))


def trainable_formula() -> float:
    made = drawn("sinusoidal_trainable")
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            parameter += torch.randn(parameter.shape, generator=generator_for(1, key))
    w, f = first(made, "frequency").tolist(), first(made, "phase").tolist()
    return against_formula(made, lambda t: formulas_absolute.turning(t, w, f))


def hybrid_formula() -> float:
    made = drawn("hybrid", position_limit=LIMIT)
    table = first(made, "table")
    return against_formula(made, lambda t: formulas_absolute.hybrid(t, table[t].tolist(), HEAD_DIM, BASE))


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
    ("integer", FORMULA): (integer_formula, 2e-5),  # rows reach 150: float32 has 6e-8 of that
    ("normalized", FORMULA): (normalized_formula, 1e-7),
    ("binary", FORMULA): (binary_formula, 1e-6),
    ("learned", "x-transformers, 128 positions"): (learned_x_transformers, 1e-7),
    ("sinusoidal_trainable", FORMULA): (trainable_formula, 1e-7),
    ("hybrid", FORMULA): (hybrid_formula, 1e-6),
    ("sinusoidal", FORMULA): (sinusoidal_formula, 1e-7),
    ("sinusoidal", "transformers GPT-J, 512 positions"): (sinusoidal_gptj, 1e-4),
    ("sinusoidal", "x-transformers, 512 positions"): (sinusoidal_x_transformers, 1e-4),
}
