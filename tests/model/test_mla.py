"""Latent attention: against loops in float64, and decoded from its cache alone."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from latent import (
    DRAWN,
    HEADS,
    RANKS,
    SHAPE,
    VOCABULARY,
    WIDTH,
    Exactly,
    T,
    apart,
    attention_of,
    inputs,
    model_of,
    norm,
    output,
    turn,
)
from torch import Tensor, nn


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


class TurnedContent(nn.Linear):
    """A map whose output's content parts are turned by the token's position as well: the double encoding."""

    def __init__(self, plain: nn.Linear, pos: list[int], parts: list[slice]) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False)
        self.weight = plain.weight
        self.pos, self.parts = pos, parts

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x).clone()
        for t, at in enumerate(self.pos):
            for part in self.parts:
                y[0, t, part] = turn("rope")(y[0, t, part], at).float()
        return y


def test_absorbed_scores_fail_once_a_rotation_enters_the_latent_part() -> None:
    model, pos, x = model_of("rope"), list(range(T)), inputs()
    attention = attention_of(model)
    exact = Exactly(attention, turn("rope"))
    before = apart(exact.decoded(x, pos), output(model, x, pos))
    whole = WIDTH + attention.rope_dim
    content = [slice(h * whole, h * whole + WIDTH) for h in range(HEADS)]
    keys = [slice(h * WIDTH, (h + 1) * WIDTH) for h in range(HEADS)]
    with torch.no_grad():
        attention.q_up = TurnedContent(attention.q_up, pos, content)
        attention.kv_up = TurnedContent(attention.kv_up, pos, keys)
        double = output(model, x, pos)
    difference = (exact.decoded(x, pos) - double).abs().amax(-1)
    assert before < 5e-6
    assert difference[0] < 5e-6  # the first token has one key, whatever its score
    assert difference.max() > 1e-2 > 1000 * before, difference
    # Absorbed, the map from query to latent would have to be another one at every distance.
    w_uk = exact.w_uk[0]
    rotated = [
        torch.stack([turn("rope")(column, r) for column in w_uk.T.unbind()], dim=-1) for r in (0, 1, 2)
    ]
    assert min(apart(rotated[0], rotated[1]), apart(rotated[1], rotated[2])) > 0.1


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["rope", "nope"])
@pytest.mark.parametrize("pos", [list(range(T)), DRAWN])
def test_a_model_decodes_from_the_cache_alone(encoding: str, pos: list[int]) -> None:
    """Token by token, with kv_rank + rope_dim numbers a token and layer of what came before."""
    model = model_of(encoding)
    tokens = torch.randint(VOCABULARY, (T,), generator=torch.Generator().manual_seed(4)).tolist()
    exact = [Exactly(attention_of(model, layer), turn(encoding)) for layer in range(SHAPE.n_layers)]
    caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in exact]
    wide = copy.deepcopy(model).double()
    rows = []
    for token, t in zip(tokens, pos, strict=True):
        stream = wide.embedding.weight[token]
        for block, attention, cache in zip(wide.blocks, exact, caches, strict=True):
            x = norm(stream, block.attention_norm.weight)
            cache.append(attention.cached(x, t))
            stream = stream + attention.absorbed(x, t, cache)
            x = norm(stream, block.mlp_norm.weight)
            stream = stream + block.mlp.down.weight @ F.relu(block.mlp.up.weight @ x).square()
        rows.append(wide.embedding.weight @ norm(stream, wide.norm.weight))
        kept = sum(part.numel() for cache in caches for one in cache for part in one)
        assert kept == len(rows) * SHAPE.n_layers * (RANKS["kv_rank"] + RANKS["rope_dim"])
    assert apart(model(torch.tensor([tokens]), torch.tensor(pos))[0], torch.stack(rows)) < 1e-5
    last = model(torch.tensor([tokens]), torch.tensor(pos), 3)[0]
    assert apart(last, torch.stack(rows[-3:])) < 1e-5
