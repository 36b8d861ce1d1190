import math

import formulas
import pytest
import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings import build_encoding
from posenc.encodings.rope import RoPE


def rope(head_dim: int, **params: object) -> RoPE:
    encoding = build_encoding(
        "rope", d_model=2 * head_dim, n_heads=2, head_dim=head_dim, n_layers=1, train_length=16, **params
    )
    assert isinstance(encoding, RoPE)
    return encoding


def turn(encoding: RoPE, x: Tensor, positions: list[int]) -> Tensor:
    """x (T, D) at positions, as the queries come out: (T, D)."""
    pos = torch.tensor(positions)
    q, k = encoding.rotate(x[None, None], x[None, None], pos, pos, 0)
    assert torch.equal(q, k)
    return q[0, 0]


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("fraction, drop_low", [(1.0, 0.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_formula(layout: str, fraction: float, drop_low: float, base: float) -> None:
    params = {"layout": layout, "fraction": fraction, "drop_low": drop_low, "base": base}
    positions = [0, 1, 2, 63, 64, 511, 4096, 65536]
    x = torch.randn(len(positions), 16, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    got = turn(rope(16, **params), x, positions)
    for row, t in enumerate(positions):
        want = formulas.rope(x[row].tolist(), t, **params)
        # 65536 is included: a float32 angle would be off by up to 0.004 radians there
        assert (got[row].double() - torch.tensor(want, dtype=torch.float64)).abs().max() < 5e-7, t


def test_pins() -> None:
    # one pair has the unit frequency; the query stands at 1, the key at 2
    q, k = torch.tensor([1.0, 2.0]).view(1, 1, 1, 2), torch.tensor([3.0, 4.0]).view(1, 1, 1, 2)
    q, k = rope(2).rotate(q, k, torch.tensor([1]), torch.tensor([2]), 0)
    assert (q * k).sum().item() == pytest.approx(7.6262673, abs=1e-6)
    pinned = turn(rope(4, layout="interleaved"), torch.tensor([[1.0, 0, 0, 1]]), [2])
    assert pinned[0].tolist() == pytest.approx([-0.41615, 0.90930, -0.02000, 0.99980], abs=1e-5)


def test_queries_and_keys_have_positions_of_their_own() -> None:
    encoding, x = rope(8), torch.randn(1, 1, 3, 8)
    q_pos, k_pos = torch.tensor([5, 6, 7]), torch.tensor([0, 1, 2])
    q, k = encoding.rotate(x, x, q_pos, k_pos, 0)
    assert torch.equal(q[0, 0], turn(encoding, x[0, 0], [5, 6, 7]))
    assert torch.equal(k[0, 0], turn(encoding, x[0, 0], [0, 1, 2]))


def test_one_key_for_all_heads_is_turned_like_a_key_of_each() -> None:
    encoding, pos = rope(8), torch.arange(5)
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8)
    turned_q, turned_k = encoding.rotate(q, k, pos, pos, 0)
    assert turned_q.shape == q.shape and turned_k.shape == k.shape
    assert torch.equal(turned_k.expand_as(q), encoding.rotate(q, k.expand_as(q), pos, pos, 0)[1])


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_position_zero_is_the_identity_and_norms_are_kept(layout: str) -> None:
    x = torch.randn(5, 32)
    assert torch.equal(turn(rope(32, layout=layout), x, [0] * 5), x)
    turned = turn(rope(32, layout=layout), x, [1, 7, 64, 513, 65536])
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6)
    assert not torch.allclose(turned, x, atol=0.1)


@pytest.mark.parametrize("shift", [1, 64, 4096, 65536])
def test_scores_do_not_change_under_a_joint_shift(shift: int) -> None:
    encoding = rope(16)
    q, k = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(2)).unbind(0)
    here = turn(encoding, q, list(range(6))) @ turn(encoding, k, list(range(6))).T
    positions = [shift + t for t in range(6)]
    there = turn(encoding, q, positions) @ turn(encoding, k, positions).T
    assert (here - there).abs().max() < 5e-6


def test_layouts_are_one_law_in_another_order() -> None:
    x = torch.randn(4, 8)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the first members of the pairs, then the second ones
    interleaved = turn(rope(8, layout="interleaved"), x, [0, 3, 9, 700])
    half = turn(rope(8, layout="half"), x[:, order], [0, 3, 9, 700])
    assert torch.equal(interleaved[:, order], half)


def test_fraction_leaves_the_rest_alone_and_counts_over_the_rotated_width() -> None:
    encoding, x = rope(16, fraction=0.25), torch.randn(3, 16)
    turned = turn(encoding, x, [1, 2, 3])
    assert torch.equal(turned[:, 4:], x[:, 4:])
    assert encoding.frequencies().tolist() == pytest.approx([1.0, 0.01])  # 10000^(-2/4), not 10000^(-2/16)


def test_drop_low_stills_the_lowest_and_counts_over_the_whole_width() -> None:
    theta = rope(8, drop_low=0.5).frequencies().tolist()
    assert theta == pytest.approx([1.0, 0.1, 0.0, 0.0])


def test_positions_survive_bf16_inputs() -> None:
    # 256 and 257 are one number in bf16: the angle must never be made of one
    x = torch.ones(2, 8, dtype=torch.bfloat16)
    turned = turn(rope(8), x, [256, 257])
    assert turned.dtype == torch.bfloat16
    assert (turned[0] - turned[1]).abs().max() > 0.3
    exact = turn(rope(8), x.float(), [256, 257])
    assert (turned.float() - exact).abs().max() <= 2**-8  # one rounding of numbers below 2


def test_first_pair_turns_one_radian_a_token() -> None:
    turned = turn(rope(2), torch.tensor([[1.0, 0.0]]), [1])
    assert turned[0].tolist() == pytest.approx([math.cos(1), math.sin(1)], abs=1e-7)


@pytest.mark.parametrize(
    "params",
    [
        {"base": 1.0},
        {"base": math.nan},
        {"base": math.inf},
        {"fraction": 0.0},
        {"fraction": 1.5},
        {"fraction": 0.05},  # nothing of 16
        {"drop_low": 1.0},
        {"drop_low": 0.99},  # all 8 pairs
        {"drop_low": 0.03},  # none of them
        {"drop_low": -0.1},
        {"layout": "pairs"},
    ],
)
def test_values_out_of_range_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        rope(16, **params)


def test_odd_head_width_is_refused() -> None:
    with pytest.raises(UserError, match="head_dim=15"):
        rope(15)
