import math

import pytest
import torch
from formulas_relative import (
    HEADS,
    LAYERS,
    NEAR,
    PLACES,
    POSITIONS,
    TOKENS,
    Example,
    WholeShaw,
    apart,
    build,
    largest_made,
    off_by,
    shaw_score,
    shaw_value,
)
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.rope import RoPE
from posenc.encodings.shaw import Shaw
from posenc.encodings.sum import Composed
from posenc.model import kernels


def built(example: Example, clip: int = 4, per_head: bool = False) -> Shaw:
    encoding = example.encoding("shaw", clip=clip, per_head=per_head)
    assert isinstance(encoding, Shaw)
    return encoding


def wanted_output(example: Example, encoding: Shaw, layer: int, **how: int | None) -> Tensor:
    keys, added = (
        table[layer].detach().expand(len(example.q), -1, -1) for table in (encoding.keys, encoding.added)
    )
    clip = encoding.clip
    return example.formula(shaw_score(example, keys, clip), shaw_value(example, added, clip), **how)


@pytest.mark.parametrize("pos", POSITIONS.values(), ids=list(POSITIONS))
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("clip, per_head", [(4, False), (1, True), (TOKENS - 1, False), (50, True)])
@torch.no_grad()
def test_formula(clip: int, per_head: bool, layer: int, pos: list[int]) -> None:
    example = Example(pos)
    encoding = built(example, clip, per_head)
    assert apart(example.output(encoding, layer), wanted_output(example, encoding, layer)) < 2e-6


@pytest.mark.parametrize("reach, wanted", [(5, None), (None, 3), (3, 1), (1, None)])
@pytest.mark.parametrize("pos", [NEAR, POSITIONS["drawn"]])
@torch.no_grad()
def test_formula_with_a_window_and_for_the_last_tokens(
    pos: list[int], reach: int | None, wanted: int | None
) -> None:
    example = Example(pos)
    encoding = built(example)
    got = example.output(encoding, 1, reach=reach, wanted=wanted)
    assert apart(got, wanted_output(example, encoding, 1, reach=reach, wanted=wanted)) < 2e-6


@pytest.mark.parametrize("wanted", [None, 7])
@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 3])
@torch.no_grad()
def test_blocks_of_queries(most: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = built(example)
    whole = example.output(encoding, 1, wanted=wanted)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.output(encoding, 1, wanted=wanted), whole) < 1e-6


@pytest.mark.parametrize("pos", [NEAR, POSITIONS["drawn"]])
def test_gradients(pos: list[int]) -> None:
    example = Example(pos)
    encoding = built(example, clip=3)
    (example.output(encoding, 0) * example.loss).sum().backward()
    exact = {name: p[0].detach().double() for name, p in encoding.named_parameters()}

    def formula() -> Tensor:
        keys, added = (exact[name].expand(HEADS, -1, -1) for name in ("keys", "added"))
        return example.formula(shaw_score(example, keys, 3), shaw_value(example, added, 3))

    for name, parameter in encoding.named_parameters():
        assert parameter.grad is not None and not parameter.grad[1].any()  # the other layer
        for at in ((0, 0, 2), (0, 1, 5), (0, 3, 0)):
            want = example.numeric_gradient(formula, exact[name], at)
            assert parameter.grad[0][at].item() == pytest.approx(want, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("pos", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("clip", [1, 3, 40])
def test_whole_decoder(clip: int, per_head: bool, pos: list[int]) -> None:
    assert off_by(WholeShaw, "shaw", pos, clip=clip, per_head=per_head) < 1e-5


@torch.no_grad()
def test_by_hand() -> None:
    # one head of width 1, clip 1, q = k = 1: every older key scores 1 + ln 2, the token itself 1 + ln 3
    example = Example([0, 1, 2], heads=1, width=1)
    example.q, example.k = torch.ones_like(example.q), torch.ones_like(example.k)
    example.v = torch.tensor([[[10.0], [20.0], [60.0]]], dtype=torch.float64)
    encoding = built(example, clip=1)
    encoding.keys.copy_(torch.tensor([math.log(3), math.log(2)])[:, None])
    encoding.added.copy_(torch.tensor([7.0, 14.0])[:, None])
    got = example.output(encoding, 0)[0, :, 0].tolist()
    assert got == pytest.approx([17.0, (2 * 24 + 3 * 27) / 5, (2 * 24 + 2 * 34 + 3 * 67) / 7], rel=1e-6)


@torch.no_grad()
def test_one_token() -> None:
    example = Example([0])
    encoding = built(example)
    assert apart(example.output(encoding, 1)[:, 0], example.v[:, 0] + encoding.added[1, 0, 0]) < 1e-6


@torch.no_grad()
def test_values_of_far_keys_have_the_last_row() -> None:
    example = Example()
    encoding = built(example, clip=2)
    before = example.output(encoding, 0)
    encoding.added[0, 0, -1] += 1
    moved = example.output(encoding, 0) - before
    assert (moved[:, :2] == 0).all()  # no distance of 2 or more yet
    assert (moved[:, 2:] > 0).all() and (moved < 1).all()


@torch.no_grad()
def test_the_future_is_finite_and_without_effect() -> None:
    example = Example()
    encoding = built(example)
    q = example.q.float()[None]
    pos = torch.tensor(example.pos)
    state = encoding.prepare(q, q, q, 0)
    s = torch.zeros(1, HEADS, TOKENS, TOKENS)
    assert encoding.scores(s, q, q, pos, pos, state, 0).isfinite().all()
    p = torch.softmax(torch.randn(s.shape), -1).tril()
    changed = example.v.clone()
    changed[:, 10:] = 1e3
    v, w = example.v.float()[None], changed.float()[None]
    one, other = (encoding.values(p, each, pos, pos, 0)[:, :, :10] for each in (v, w))
    assert torch.equal(one, other)


@torch.no_grad()
def test_in_a_sum_the_query_is_not_turned() -> None:
    example = Example(POSITIONS["drawn"])
    encoding = built(example)
    rope = example.encoding("rope")
    assert isinstance(rope, RoPE)
    got = example.output(Composed(encoding.shape, (rope, encoding)), 0)
    pos = torch.tensor(example.pos)
    turned = Example(POSITIONS["drawn"])
    turned.q, turned.k = (x.double() for x in rope.rotate(example.q, example.k, pos, pos, 0))
    keys, added = (t[0].expand(HEADS, -1, -1) for t in (encoding.keys, encoding.added))
    zero = torch.zeros_like(keys)
    of_keys = shaw_score(turned, zero, 4)
    with_a, without = shaw_score(example, keys, 4), shaw_score(example, zero, 4)

    def score(h: int, i: int, j: int) -> float:
        return of_keys(h, i, j) + with_a(h, i, j) - without(h, i, j)

    assert apart(got, example.formula(score, shaw_value(example, added, 4))) < 3e-6


def test_no_vector_for_every_pair() -> None:
    example = Example(list(range(64)))
    encoding = built(example)
    largest = largest_made(lambda: example.output(encoding, 0).sum().backward())
    assert HEADS * 64 * 64 <= largest < 2 * HEADS * 64 * 64


@torch.no_grad()
def test_bf16() -> None:
    example = Example()
    encoding = built(example)
    whole = example.output(encoding, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert 0 < apart(example.output(encoding, 0), whole) < 0.05


def test_start_and_count() -> None:
    for per_head, tables in ((False, 1), (True, 4)):
        encoding = build("shaw", 4, 64, 3, 64, per_head=per_head)
        assert isinstance(encoding, Shaw) and encoding.clip == 16
        for name, parameter in encoding.named_parameters():
            assert parameter.shape == (3, tables, 17, 64)
            encoding.initialize(name, parameter.data, torch.Generator().manual_seed(0))
            assert parameter.std().item() == pytest.approx(1 / 8, rel=0.05)


def test_settings() -> None:
    with pytest.raises(Exception, match="clip=0: must be at least 1"):
        build("shaw", 2, 8, 1, 16, clip=0)
    assert build("shaw", 2, 8, 1, 17).warnings() == []
    (warning,) = build("shaw", 2, 8, 1, 15).warnings()
    assert "2 of 17 rows" in warning
    assert build("shaw", 2, 8, 1, 15, position_limit=120).warnings() == [warning]  # positions=offset
    assert build("shaw", 2, 8, 1, 15, position_limit=240, distance_limit=240).warnings() == []
    assert isinstance(build("shaw", 1, 8, 1, 16), Encoding)
