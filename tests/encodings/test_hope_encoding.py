import math
from typing import Any

import pytest
import torch
from decoding import CLOSE, SHAPE, Paper, apart, encoding, exactly, logits, model_of, text
from formulas_rotary import hope
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.hope import HoPE

WIDTH = SHAPE.head_dim


def built(**params: Any) -> HoPE:
    made = encoding("hope", **params)
    assert isinstance(made, HoPE)
    return made


def vectors(n: int, seed: int = 0) -> Tensor:
    return torch.randn(1, 1, n, WIDTH, generator=torch.Generator().manual_seed(seed))


# of 4 pairs at base 10000 one turn takes 6.3, 63, 628 and 6283 tokens
@pytest.mark.parametrize(
    "train_length, turns, turning",
    [
        (7, 1.0, 1),
        (62, 1.0, 1),
        (63, 1.0, 2),
        (628, 1.0, 2),
        (629, 1.0, 3),
        (8192, 1.0, 4),
        (512, 8.0, 2),
        (512, 8.5, 1),
        (64, 0.1, 3),
        (64, 0.01, 4),
    ],
)
def test_which_pairs_turn(train_length: int, turns: float, turning: int) -> None:
    theta = built(train_length=train_length, turns=turns).frequencies().tolist()
    want = [10000 ** (-2 * k / WIDTH) if k < turning else 0.0 for k in range(WIDTH // 2)]
    assert theta == pytest.approx(want)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("train_length, turns", [(64, 1.0), (1024, 2.0), (64, 0.05)])
def test_formula(layout: str, train_length: int, turns: float) -> None:
    made = built(layout=layout, train_length=train_length, turns=turns)
    pos = [0, 1, 2, 63, 64, 511, 4096, 65_536]
    x, y = vectors(len(pos)), vectors(len(pos), 1)
    q, k = made.rotate(x, y, torch.tensor(pos), torch.tensor(pos), 0)
    got = (q.double() @ k.double().transpose(-1, -2))[0, 0]
    for row, i in enumerate(pos):
        for column, j in enumerate(pos):
            a, b = x[0, 0, row].tolist(), y[0, 0, column].tolist()
            want = hope(a, b, i, j, train_length, layout=layout, turns=turns)
            assert got[row, column].item() == pytest.approx(want, abs=3e-6), (i, j)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_whole_decoder(layout: str) -> None:
    model, tokens = model_of(built(layout=layout)), text(20)
    want = exactly(
        model, tokens, lambda wide: Paper(wide, lambda q, k, i, j, at: hope(q, k, i, j, 8, layout=layout))
    )
    assert apart(logits(model, tokens), want) < CLOSE


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_slow_pairs_carry_content_alone(layout: str) -> None:
    made = built(layout=layout, train_length=100)  # two of four pairs turn
    x, pos = vectors(3), torch.tensor([1, 50, 65_536])
    turned = made.rotate(x, x, pos, pos, 0)[0]
    still = [4, 5, 6, 7] if layout == "interleaved" else [2, 3, 6, 7]
    moving = [c for c in range(WIDTH) if c not in still]
    assert torch.equal(turned[..., still], x[..., still])
    assert ((turned - x)[..., moving].abs() > 1e-4).all()


def test_it_is_rope_where_every_pair_turns() -> None:
    x, pos = vectors(3), torch.tensor([1, 50, 65_536])
    ours, theirs = (
        encoding(name, train_length=8192).rotate(x, x, pos, pos, 0)[0] for name in ("hope", "rope")
    )
    assert torch.equal(ours, theirs)


def test_evaluation_keeps_the_border_of_training() -> None:
    made = built(train_length=64)
    assert made.frequencies().count_nonzero() == 2
    long = torch.arange(4096)
    assert torch.equal(made.angles(long)[0][:64], made.angles(long[:64])[0])


def test_where_positions_are_drawn_the_border_is_the_context_length() -> None:
    assert torch.equal(built(train_length=64, limit=1024).frequencies(), built(train_length=64).frequencies())


@pytest.mark.parametrize("turns", [0.0, -1.0, math.nan])
def test_turns_out_of_range(turns: float) -> None:
    with pytest.raises(UserError, match="turns"):
        built(turns=turns)


@pytest.mark.parametrize("train_length, turns", [(6, 1.0), (64, 11.0), (64, math.inf)])
def test_nothing_left_to_turn_is_refused(train_length: int, turns: float) -> None:
    with pytest.raises(UserError, match=f"turns={turns}: no pair .* T={train_length}"):
        built(train_length=train_length, turns=turns)


def test_declares() -> None:
    made = built()
    assert made.relative and made.prefix_stable and not made.decouples and not list(made.parameters())
