"""Latent attention: against loops in float64, and decoded from its cache alone."""

from __future__ import annotations

import pytest
from latent import (
    DRAWN,
    RANKS,
    SHAPE,
    Exactly,
    T,
    apart,
    attention_of,
    inputs,
    model_of,
    output,
    turn,
)


@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize("pos", [list(range(T)), DRAWN, [0], list(range(65529, 65537))], ids=str)
@pytest.mark.parametrize(
    "ranks",
    [RANKS, {"kv_rank": 1, "q_rank": 24, "rope_dim": 12}, {"kv_rank": 24, "q_rank": 1, "rope_dim": 2}],
)
def test_explicit_scores(encoding: str, pos: list[int], ranks: dict[str, int]) -> None:
    model = model_of(encoding, **ranks)
    x = inputs(len(pos))
    for layer in range(SHAPE.n_layers):
        exact = Exactly(attention_of(model, layer), turn(encoding))
        assert apart(output(model, x, pos, layer=layer), exact.explicit(x, pos)) < 5e-6


@pytest.mark.parametrize("encoding", ["rope", "nope"])
def test_absorbed_scores_are_the_explicit_ones(encoding: str) -> None:
    model = model_of(encoding)
    exact = Exactly(attention_of(model), turn(encoding))
    x = inputs()
    assert apart(exact.decoded(x, DRAWN), exact.explicit(x, DRAWN)) < 1e-13
    assert apart(exact.decoded(x, DRAWN), output(model, x, DRAWN)) < 5e-6
