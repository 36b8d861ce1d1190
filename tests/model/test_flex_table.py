"""Gradients of learned tables: through the whole attention, by each way, and along diagonals."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flexing import BATCH, HEADS, SHAPE, by_blocks, by_flex, composed, eager, encoding, given
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.options import Offset, Randomized
from posenc.encodings.options import Window
from posenc.evaluation.extend._sinks import FirstAndNear
from posenc.model import diagonals, flex, flex_masks, flex_table


def gradients(run: Callable[..., Tensor], e: Encoding, pos: Tensor, queries: int) -> list[Tensor]:
    q, k, v = (one.detach().requires_grad_() for one in given(queries, len(pos), torch.float64))
    weights = torch.randn(v.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    e.zero_grad()
    (run(e, q, k, v, pos, layer=1) * weights[:, :, -queries:]).sum().backward()
    return [one.grad for one in (q, k, v, *e.parameters()) if one.grad is not None]


@pytest.mark.parametrize("way", ["captured", "tiles"])
@pytest.mark.parametrize("queries", [150, 40])
@pytest.mark.parametrize("option", ["none", "window", "sinks", "randomized", "offset"])
@pytest.mark.parametrize("name", ["t5", "kerple_log", "dynamic_bias"])
def test_gradients(name: str, option: str, queries: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "none": [],
        "window": [Window(SHAPE, window=9)],
        "sinks": [FirstAndNear(SHAPE, first=4, near=30)],
        "randomized": [Randomized(SHAPE, max=2000, dense=False)],
        "offset": [Offset(SHAPE, max=2000)],
    }[option]
    monkeypatch.setattr(flex, "TABLE_GRADIENT", way)
    asked: list[bool] = []
    own = flex_table.in_blocks
    monkeypatch.setattr(flex_table, "in_blocks", lambda *a: asked.append(True) or own(*a))
    e = composed(name, *options)
    pos = e.positions(150, True, torch.Generator().manual_seed(2))
    got = gradients(lambda *a, layer: by_flex(*a, layer, eager), e, pos, queries)
    want = gradients(by_blocks, e, pos, queries)
    assert len(got) == len(want) > 3
    for one, other in zip(got, want, strict=True):
        # the table is float32; a shift of the whole table has no gradient, but a sum of 150 rounding errors
        assert (one - other).abs().max() < 3e-5 * max(1.0, other.abs().max().item())
    assert bool(asked) == (way == "tiles" and option != "randomized")


def test_gradient_of_a_table_alone_and_of_none() -> None:
    pos = torch.arange(20)
    e = encoding("t5")
    q, k, v = given(20, 20)
    by_flex(e, q, k, v, pos, 0, eager).sum().backward()
    assert e.table.grad is not None
    e.table.requires_grad_(False)
    assert not by_flex(e, q, k, v, pos, 0, eager).requires_grad


@pytest.mark.parametrize("most", [1, 2 * HEADS * 50 * 7, 1 << 24])
@pytest.mark.parametrize(
    "e", [Window(SHAPE, window=5), FirstAndNear(SHAPE, first=2, near=7), Encoding(SHAPE)]
)
@pytest.mark.parametrize("queries", [50, 13, 1])
def test_table_gradient_by_blocks(
    e: Encoding, queries: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex_table, "MOST_SCORES", most)
    want, given_to_it = table_case(e, queries, 50)
    assert torch.allclose(flex_table.in_blocks(*given_to_it), want, atol=1e-12)


def table_case(e: Encoding, queries: int, keys: int) -> tuple[Tensor, tuple[Any, ...]]:
    """The table's gradient by autograd through all scores at once, and what a way is given; float64."""
    generator = torch.Generator().manual_seed(4)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    pos = torch.arange(keys)
    q, k, v = drawn(BATCH, HEADS, queries, 24), drawn(BATCH, HEADS, keys, 24), drawn(BATCH, HEADS, keys, 8)
    dout, table = drawn(BATCH, HEADS, queries, 8), drawn(HEADS, keys).requires_grad_()
    i = pos[keys - queries :, None]
    seen = (pos <= i) & (e.visible(pos[keys - queries :], pos, 0) | (pos == i))
    s = (q @ k.transpose(-1, -2)) * 0.3 + table[:, (i - pos).clamp_min(0)]
    s = s.masked_fill(~seen, float("-inf"))
    out = torch.softmax(s, -1) @ v
    (want,) = torch.autograd.grad((out * dout).sum(), table)
    mask = flex_masks.mask_of(e, pos, 0, queries)
    assert mask is not None
    left = (s.logsumexp(-1).detach(), (dout * out).sum(-1).detach(), table.detach())
    return want, (q, k, v, dout, *left, mask, 0.3)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton and TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    "e", [Window(SHAPE, window=5), FirstAndNear(SHAPE, first=2, near=7), Encoding(SHAPE)]
)
@pytest.mark.parametrize("queries", [50, 13, 1])
@pytest.mark.parametrize(("programs", "partial"), [(1024, 1 << 26), (8, 1)])
def test_table_gradient_by_the_kernel(
    e: Encoding, queries: int, programs: int, partial: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenc.model import flex_kernel

    for name, value in (("SIDE", 16), ("PROGRAMS", programs), ("MOST_PARTIAL", partial)):
        monkeypatch.setattr(flex_kernel, name, value)
    want, (*tensors, mask, scale) = table_case(e, queries, 50)
    got = flex_kernel.table_gradient(*(one.float() for one in tensors), mask, scale)
    assert (got - want).abs().max() < 1e-5


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (5, 5), (3, 7), (7, 7), (2, 9)])
def test_sums_by_distance(queries: int, keys: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for batch in (1, 3):
        ds = torch.randn(batch, 2, queries, keys, generator=generator, dtype=torch.float64).tril(
            keys - queries
        )
        want = torch.zeros(2, keys, dtype=torch.float64)
        for t in range(queries):
            for j in range(keys - queries + t + 1):
                want[:, keys - queries + t - j] += ds[:, :, t, j].sum(0)
        assert torch.allclose(diagonals.sums_by_distance(ds), want, atol=1e-12)
        part = torch.cat((ds, ds), dim=1)[:, 2:]  # not contiguous, with an offset
        assert torch.allclose(diagonals.sums_by_distance(part), want, atol=1e-12)


def test_tiles_join_to_sums_by_distance() -> None:
    side, count = 4, 3
    keys = side * count
    ds = torch.randn(1, 2, keys, keys, generator=torch.Generator().manual_seed(0)).tril()
    tiles = ds[0].unflatten(-1, (count, side)).unflatten(-3, (count, side)).transpose(-3, -2)
    by_diagonal = torch.stack(
        [sum(tiles[:, m, m - c] for m in range(c, count)) for c in range(count)], dim=1
    )  # (H, C, L, L)
    sums = diagonals.tile_sums(by_diagonal)
    assert sums.shape == (2, count, 2 * side) and (sums[..., 0] == 0).all()
    assert torch.allclose(diagonals.joined(sums), diagonals.sums_by_distance(ds), atol=1e-5)
