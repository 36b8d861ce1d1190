import math
from typing import Any

import pytest
import torch
from decoding import CLOSE, Paper, T, apart, encoding, exactly, logits, model_of, text
from formulas_rotary import rope, xpos
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.base import Shape
from posenc.encodings.xpos import XPos
from posenc.model.kernels import attend

WIDTH = 8
LAYOUTS = ["interleaved", "half"]


def built(**params: Any) -> XPos:
    made = encoding("xpos", **params)
    assert isinstance(made, XPos)
    return made


def vectors(n: int, seed: int = 0) -> Tensor:
    """(1, 1, n, D)"""
    return torch.randn(1, 1, n, WIDTH, generator=torch.Generator().manual_seed(seed))


def products(made: XPos, q: Tensor, k: Tensor, q_pos: list[int], k_pos: list[int]) -> Tensor:
    q, k = made.rotate(q, k, torch.tensor(q_pos), torch.tensor(k_pos), 0)
    return (q.double() @ k.double().transpose(-1, -2))[0, 0]  # (T, S)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base, scale_base", [(10000.0, 512.0), (500000.0, 512.0), (10000.0, 20.0)])
def test_formula(layout: str, base: float, scale_base: float) -> None:
    chosen = {"base": base, "layout": layout, "scale_base": scale_base}
    pos = [0, 1, 2, 63, 64, 257, 1000]
    q, k = vectors(len(pos)), vectors(len(pos), 1)
    got = products(built(**chosen), q, k, pos, pos)
    for row, i in enumerate(pos):
        for column, j in enumerate(pos[: row + 1]):
            want = xpos(q[0, 0, row].tolist(), k[0, 0, column].tolist(), i, j, **chosen)
            assert got[row, column].item() == pytest.approx(want, abs=3e-6), (i, j)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale_base", [512.0, 4.0])
def test_the_whole_decoder(layout: str, scale_base: float) -> None:
    model, tokens = model_of(built(layout=layout, scale_base=scale_base)), text(3 * T)
    want = exactly(
        model,
        tokens,
        lambda wide: Paper(
            wide, lambda q, k, i, j, at: xpos(q, k, i, j, layout=layout, scale_base=scale_base)
        ),
    )
    assert apart(logits(model, tokens), want) < CLOSE
    plain = model_of(encoding("rope", layout=layout))
    assert apart(logits(plain, tokens), want) > 1e-3


def test_fast_pairs_fade_the_most() -> None:
    # of unit pairs, with the turning taken out: what is left at the distance scale_base is z itself
    made = built()
    factors = made.log_factors(torch.tensor([512]), 0).exp()[0].tolist()
    assert factors == pytest.approx([(2 * k / WIDTH + 0.4) / 1.4 for k in range(WIDTH // 2)])
    assert factors == sorted(factors) and factors[0] == pytest.approx(0.4 / 1.4) and factors[-1] < 1


@pytest.mark.parametrize("scale_base", [512.0, 16.0])
def test_an_endless_scale_is_rope(scale_base: float) -> None:
    q, k, pos = vectors(4), vectors(4, 1), [0, 3, 9, 700]
    want = torch.tensor(
        [[rope(q[0, 0, a].tolist(), k[0, 0, b].tolist(), pos[a], pos[b]) for b in range(4)] for a in range(4)]
    )
    past = torch.ones(4, 4).tril().bool()
    assert apart(products(built(scale_base=1e9), q, k, pos, pos)[past], want[past]) < 1e-5
    off_diagonal = past & ~torch.eye(4).bool()
    near = products(built(scale_base=scale_base), q, k, pos, pos)
    assert ((near - want)[off_diagonal].abs() > 1e-3).all()
    assert apart(near.diag(), want.diag()) < 1e-5  # nothing fades at no distance


@pytest.mark.parametrize("wanted", [1, 2, 7])
def test_the_last_queries_of_a_window_count_from_its_middle(wanted: int) -> None:
    made, pos = built(scale_base=2.0), list(range(20))
    q, k = vectors(20), vectors(20, 1)
    whole = products(made, q, k, pos, pos)
    last = products(made, q[:, :, -wanted:], k, pos[-wanted:], pos)
    assert apart(last, whole[-wanted:]) < 1e-6


@pytest.mark.parametrize("shift", [1, 1000, 65_536 - 40, 10**9])
def test_a_joint_shift_changes_nothing(shift: int) -> None:
    made, pos = built(), list(range(40))
    q, k = vectors(40), vectors(40, 1)
    moved = [t + shift for t in pos]
    assert apart(products(made, q, k, pos, pos), products(made, q, k, moved, moved)) < 1e-5


@pytest.mark.parametrize("longer", [9, 64, 1500, 4096])
def test_a_longer_window_moves_the_centre_and_no_score(longer: int) -> None:
    made = built()
    q, k = vectors(longer), vectors(longer, 1)
    short, pos = list(range(8)), list(range(longer))
    few = products(made, q[:, :, :8], k[:, :, :8], short, short)
    assert apart(few.tril(), products(made, q, k, pos, pos)[:8, :8].tril()) < 2e-6
    model, tokens = model_of(made), text(min(longer, 1500))
    assert apart(logits(model, tokens)[:8], logits(model, tokens[:8])) < CLOSE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_window_of_65_536(dtype: torch.dtype) -> None:
    """Both ends: queries with the largest factors and with the smallest."""
    made, n = built(), 65_536
    pos, x, k = torch.arange(n), torch.zeros(1, n, 1), vectors(n, 1).to(dtype)
    for last in (n, 40):  # keys up to there, in the window's frame: what comes later is causally cut away
        q = vectors(n).to(dtype)
        turned_q, turned_k = made.rotate(q, k, pos, pos, 0)
        assert turned_q.isfinite().all() and turned_k.isfinite().all() and turned_q.dtype == dtype
        s = (turned_q[0, 0, last - 1].double() @ turned_k[0, 0, :last].double().T)[-40:]
        exact_q, exact_k = q[0, 0, last - 1].tolist(), k[0, 0, last - 40 : last].tolist()
        want = torch.tensor([xpos(exact_q, one, 39, j) for j, one in enumerate(exact_k)], dtype=torch.float64)
        assert apart(s, want) < (1e-5 if dtype == torch.float32 else 0.1)
    out = attend(q[:, :, -3:], k, k, x, pos, made, 0)
    assert out.isfinite().all()


@torch.no_grad()
def test_bf16_rounds_once() -> None:
    """Angles and factors are float32 until they have met the numbers: bf16 has 3 digits of either."""
    made, pos = built(), torch.tensor([0, 3, 256, 257, 30_000])
    x = vectors(5).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = made.rotate(x, x, pos, pos, 0)
    for rounded, wide in zip(got, made.rotate(x.float(), x.float(), pos, pos, 0), strict=True):
        assert rounded.dtype == torch.bfloat16 and torch.equal(rounded, wide.bfloat16())


@pytest.mark.parametrize("enabled", [False, True])
def test_drawn_positions_up_to_the_limit(enabled: bool) -> None:
    """The future of a query is scored before it is masked: 32 767 positions away it is huge, and finite."""
    made = built(limit=32_768)
    model = model_of(made)
    pos = torch.tensor([0, 1, 2, 500, 9000, 30_000, 32_766, 32_767])
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        out = model(torch.tensor([text(T)]), pos)
    out.float().logsumexp(-1).square().sum().backward()
    assert out.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    if not enabled:
        want = exactly(
            model, text(T), lambda wide: Paper(wide, lambda q, k, i, j, at: xpos(q, k, i, j)), pos.tolist()
        )
        assert apart(out[0], want) < CLOSE


def test_windows_too_long_are_refused_before_they_overflow() -> None:
    made = built()
    assert made.ends_at == 65_537  # evaluation says so beforehand
    with pytest.raises(ValueError, match=r"from position 0 to 65537: .* 65536 positions"):
        made.rotate(vectors(1), vectors(65_538), torch.tensor([65_537]), torch.arange(65_538), 0)
    gap = torch.tensor([5, 32_774])
    with pytest.raises(ValueError, match=r"from position 5 to 32774: .* 32768 positions"):
        made.rotate(vectors(2), vectors(2), gap, gap, 0)
    with pytest.raises(UserError, match=r"positions\.max=32769"):
        built(limit=32_769)
    with pytest.raises(UserError, match="context_length=65537"):
        built(train_length=65_537)
    assert built(limit=32_768).ends_at == built(train_length=65_536).ends_at == 65_537
    assert built(scale_base=2.0).ends_at == 257


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_scale_base_out_of_range(value: float) -> None:
    with pytest.raises(UserError, match="scale_base"):
        built(scale_base=value)


def test_other_values_out_of_range() -> None:
    with pytest.raises(UserError, match="base=1"):
        built(base=1.0)
    with pytest.raises(UserError, match="layout"):
        built(layout="pairs")
    with pytest.raises(ValueError, match="head_dim=5"):
        XPos(Shape(10, 2, 5, 1, 8), base=10000.0, layout="half", scale_base=512.0)


def test_declares() -> None:
    made = built()
    assert made.relative and made.prefix_stable and not made.decouples
    assert not list(made.parameters()) and not made.state_dict()
