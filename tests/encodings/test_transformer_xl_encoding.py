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
    WIDTH,
    Example,
    WholeXL,
    apart,
    build,
    largest_made,
    off_by,
    xl_score,
)
from torch import Tensor

from posenc.encodings.rope import RoPE
from posenc.encodings.sum import Composed
from posenc.encodings.transformer_xl import TransformerXL
from posenc.model import kernels


def built(example: Example, **params: float) -> TransformerXL:
    encoding = example.encoding("transformer_xl", **params)
    assert isinstance(encoding, TransformerXL)
    return encoding


def wanted_output(example: Example, encoding: TransformerXL, layer: int, **how: int | None) -> Tensor:
    parts = (p[layer].detach() for p in (encoding.w, encoding.u, encoding.v))
    return example.formula(xl_score(example, *parts, base=encoding.base), **how)


@pytest.mark.parametrize("pos", POSITIONS.values(), ids=list(POSITIONS))
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("heads, base", [(HEADS, 10000.0), (1, 10000.0), (2, 100.0)])
@torch.no_grad()
def test_formula(heads: int, base: float, layer: int, pos: list[int]) -> None:
    example = Example(pos, heads=heads)
    encoding = built(example, base=base)
    assert apart(example.output(encoding, layer), wanted_output(example, encoding, layer)) < 1e-5


@pytest.mark.parametrize("reach, wanted", [(5, None), (None, 3), (3, 1)])
@pytest.mark.parametrize("pos", [NEAR, POSITIONS["drawn"]])
@torch.no_grad()
def test_formula_with_a_window_and_for_the_last_tokens(
    pos: list[int], reach: int | None, wanted: int | None
) -> None:
    example = Example(pos)
    encoding = built(example)
    got = example.output(encoding, 1, reach=reach, wanted=wanted)
    assert apart(got, wanted_output(example, encoding, 1, reach=reach, wanted=wanted)) < 1e-5


@pytest.mark.parametrize("wanted", [None, 7])
@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 3])
@torch.no_grad()
def test_blocks_of_queries(most: int, wanted: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = built(example)
    whole = example.output(encoding, 1, wanted=wanted)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.output(encoding, 1, wanted=wanted), whole) < 2e-6


def test_blocks_in_any_order() -> None:
    """The kernel asks for the last one first; the sines of an earlier one must not be all there is."""
    example = Example()
    encoding = built(example)
    q, k = example.q.float()[None], example.k.float()[None]
    pos = torch.tensor(example.pos)
    whole = encoding.scores(q @ k.mT, q, k, pos, pos, encoding.prepare(q, q, k, 0), 0)
    state = encoding.prepare(q, q, k, 0)
    for start, stop in ((0, 4), (4, 9), (9, TOKENS), (2, 3)):
        s = q[:, :, start:stop] @ k[:, :, :stop].mT
        part = encoding.scores(s, q, k, pos[start:stop], pos[:stop], state, 0)
        assert apart(part, whole[:, :, start:stop, :stop]) < 1e-5


def test_gradients() -> None:
    example = Example(POSITIONS["drawn"])
    encoding = built(example)
    (example.output(encoding, 0) * example.loss).sum().backward()
    exact = {name: p[0].detach().double() for name, p in encoding.named_parameters()}
    for name, parameter in encoding.named_parameters():
        assert parameter.grad is not None and not parameter.grad[1].any()  # the other layer
        for at in [(1, 3, 4), (2, 0, 23)] if name == "w" else [(0, 0), (2, 5)]:
            want = example.numeric_gradient(
                lambda: example.formula(xl_score(example, **exact)), exact[name], at
            )
            assert parameter.grad[0][at].item() == pytest.approx(want, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("pos", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("base", [10000.0, 10.0])
def test_whole_decoder(base: float, pos: list[int]) -> None:
    assert off_by(WholeXL, "transformer_xl", pos, base=base) < 1e-5


def test_no_sinusoid_for_every_pair() -> None:
    example = Example(list(range(64)))
    encoding = built(example)
    largest = largest_made(lambda: example.output(encoding, 0).sum().backward())
    assert HEADS * 64 * 64 <= largest < 2 * HEADS * 64 * 64


@torch.no_grad()
def test_by_hand() -> None:
    # d = D = 2, one frequency of 1 radian: W reads the sine alone, v picks it, so that q = 0 scores sin(r)
    example = Example([0, 1, 3], heads=1, width=2)
    encoding = built(example)
    encoding.u.zero_(), encoding.w.zero_()
    encoding.w[0, 0, 0, 0] = 1.0
    encoding.v[0, 0] = torch.tensor([math.sqrt(2), 5.0])
    q = torch.zeros(1, 1, 3, 2)
    pos = torch.tensor([0, 1, 3])
    s = encoding.scores(torch.zeros(1, 1, 3, 3), q, q, pos, pos, encoding.prepare(q, q, q, 0), 0)[0, 0]
    for i, j, r in ((0, 0, 0), (1, 0, 1), (2, 0, 3), (2, 1, 2), (2, 2, 0)):
        assert s[i, j].item() == pytest.approx(math.sin(r), abs=1e-6)
    assert s.isfinite().all()


@torch.no_grad()
def test_content_bias_is_of_the_key_and_position_bias_of_the_distance() -> None:
    example = Example()
    encoding = built(example)
    q, k = torch.zeros(1, HEADS, TOKENS, WIDTH), example.k.float()[None]
    pos = torch.tensor(example.pos)
    w, u, v = (p[0].clone() for p in (encoding.w, encoding.u, encoding.v))

    def scores() -> Tensor:
        s = torch.zeros(1, HEADS, TOKENS, TOKENS)
        return encoding.scores(s, q, k, pos, pos, encoding.prepare(q, q, k, 0), 0)[0]

    encoding.v.zero_()
    want = (u[:, None] * example.k).sum(-1) / math.sqrt(WIDTH)
    assert apart(scores(), want[:, None].expand(-1, TOKENS, -1)) < 1e-6
    encoding.v[0], encoding.u[0] = v, 0
    s = scores()
    for r in (0, 1, 5):
        diagonal = s.diagonal(-r, 1, 2)
        assert apart(diagonal, diagonal[:, :1].expand_as(diagonal)) < 1e-5
    assert apart(s[:, 1:, 0], s[:, :1, 0].expand(-1, TOKENS - 1)) > 0.1
    encoding.w[0] = -w
    assert apart(scores(), -s) < 1e-6


@torch.no_grad()
def test_in_a_sum_queries_and_keys_are_not_turned() -> None:
    example = Example(POSITIONS["drawn"])
    encoding = built(example)
    rope = example.encoding("rope")
    assert isinstance(rope, RoPE)
    got = example.output(Composed(encoding.shape, (rope, encoding)), 0)
    pos = torch.tensor(example.pos)
    turned = Example(POSITIONS["drawn"])
    turned.q, turned.k = (x.double() for x in rope.rotate(example.q, example.k, pos, pos, 0))
    w, u, v = (p[0] for p in (encoding.w, encoding.u, encoding.v))
    whole, plain, of_turned = (
        xl_score(e, m, a, b)
        for e, m, a, b in ((example, w, u, v), (example, 0 * w, 0 * u, v), (turned, 0 * w, 0 * u, v))
    )

    def score(h: int, i: int, j: int) -> float:
        return of_turned(h, i, j) + whole(h, i, j) - plain(h, i, j)

    assert apart(got, example.formula(score)) < 1e-5


@torch.no_grad()
def test_bf16_is_as_good_far_out() -> None:
    off = []
    for pos in (NEAR, POSITIONS["far"], POSITIONS["near and far"]):
        example = Example(pos)
        encoding = built(example)
        whole = example.output(encoding, 0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            off.append((example.output(encoding, 0) - whole).square().mean().sqrt().item())
    assert max(off) < 0.02 and max(off) < 2 * off[0]


def test_start_and_count() -> None:
    encoding = build("transformer_xl", 4, 32, 3, 64)
    assert isinstance(encoding, TransformerXL)
    for name, parameter in encoding.named_parameters():
        encoding.initialize(name, parameter.data, torch.Generator().manual_seed(0))
    assert not encoding.u.any() and not encoding.v.any()
    assert encoding.w.std().item() == pytest.approx(128**-0.5, rel=0.02)
    assert sum(p.numel() for p in encoding.parameters()) == 3 * (128 * 128 + 2 * 128)


def test_settings() -> None:
    with pytest.raises(Exception, match="d_model=3: must be even"):
        build("transformer_xl", 1, 3, 1, 16)
    for base in (1.0, math.inf, math.nan):
        with pytest.raises(Exception, match="base"):
            build("transformer_xl", 2, 8, 1, 16, base=base)
