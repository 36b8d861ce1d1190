from functools import partial
from typing import Any

import pytest
import torch
from formulas_content import HEADS, LAYERS, TOKENS, TRAINED, WIDTH, Example, Formula, apart, build, cope
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.cope import CoPE
from posenc.encodings.families.content import reversed_cumsum
from posenc.model import kernels


def built(example: Example, **params: Any) -> CoPE:
    encoding = example.encoding("cope", **params)
    assert isinstance(encoding, CoPE)
    torch.nn.init.normal_(encoding.table, generator=torch.Generator().manual_seed(2))
    return encoding


def formulas(table: Tensor, heads: int) -> list[Formula]:
    return [partial(cope, table=table.tolist(), p_max=len(table) - 1)] * heads


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("p_max, shared", [(1, False), (4, True), (40, False), (None, False)])
@pytest.mark.parametrize("heads, reach, wanted", [(HEADS, TOKENS, TOKENS), (1, 5, TOKENS), (2, TOKENS, 3)])
@torch.no_grad()
def test_formula(layer: int, p_max: int | None, shared: bool, heads: int, reach: int, wanted: int) -> None:
    example = Example(heads=heads)
    encoding = built(example, p_max=p_max, shared=shared)
    table = encoding.table[0 if shared else layer]
    got = example.weights(encoding, layer, reach=reach, wanted=wanted)
    assert apart(got, example.formula(formulas(table, heads), reach, wanted)) < 3e-6


@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 4])
@torch.no_grad()
def test_blocks_of_queries(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = built(example)
    whole = example.weights(encoding, 1)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.weights(encoding, 1), whole) < 1e-6


@pytest.mark.parametrize("p_max", [4, 40])
def test_gradients_reach_the_gates(p_max: int) -> None:
    example = Example()
    encoding = built(example, p_max=p_max)
    s = torch.einsum("hid,hjd->hij", example.q, example.k).float()[None] / WIDTH**0.5
    s.requires_grad_()
    q = example.q.float()[None]
    scores = encoding.scores(s, q, q, example.pos, example.pos, encoding.prepare(q, q, q, 0), 0)
    (encoding.weights(scores, torch.ones(TOKENS, TOKENS).tril().bool(), 0) * example.loss).sum().backward()
    table = encoding.table[0].detach().double()
    # A key moves its own score, and with its gate the positions of all older keys.
    want = example.numeric_gradient(lambda: formulas(table, HEADS), example.k, (1, 9, 4))
    assert s.grad is not None and encoding.table.grad is not None
    got = (s.grad[0, 1, :, 9].double() @ example.q[1, :, 4]) / WIDTH**0.5
    assert got.item() == pytest.approx(want, rel=1e-3)
    want = example.numeric_gradient(lambda: formulas(table, HEADS), table, (2, 3))
    assert encoding.table.grad[0, 2, 3].item() == pytest.approx(want, rel=1e-3)


@torch.no_grad()
def test_open_gates_count_tokens() -> None:
    example = Example()
    encoding = built(example, p_max=6)
    q = example.q.float()[None]
    s = torch.full((1, HEADS, TOKENS, TOKENS), 50.0)  # gates of 1
    added = encoding.scores(s, q, q, example.pos, example.pos, encoding.prepare(q, q, q, 1), 1)[0] - 50.0
    for i in range(TOKENS):
        for j in range(i + 1):
            want = example.q[:, i] @ encoding.table[1, min(i - j + 1, 6)].double()  # not over sqrt(D)
            assert apart(added[:, i, j], want) < 2e-5


def test_what_comes_later_is_not_counted() -> None:
    example = Example()
    encoding = built(example)
    q = example.q.float()[None]
    s = torch.randn(1, HEADS, TOKENS, TOKENS, generator=torch.Generator().manual_seed(0))
    past = torch.ones(TOKENS, TOKENS).tril().bool()
    clean = encoding.scores(s, q, q, example.pos, example.pos, encoding.prepare(q, q, q, 0), 0)
    for garbage in (1e4, -1e4, 1e30):
        dirty = s.masked_fill(~past, garbage).requires_grad_()
        scores = encoding.scores(dirty, q, q, example.pos, example.pos, encoding.prepare(q, q, q, 0), 0)
        assert torch.equal(scores[:, :, past], clean[:, :, past]) and scores.isfinite().all()
        encoding.weights(scores, past, 0).square().sum().backward()
        assert dirty.grad is not None and dirty.grad.isfinite().all()
        assert not dirty.grad[:, :, ~past].any()


@torch.no_grad()
def test_positions_in_bf16_are_counted_in_float32() -> None:
    example = Example()
    encoding = built(example, p_max=300)
    long = torch.full((1, HEADS, 1, 1000), 50.0)
    q = example.q[None, :, :1].bfloat16()
    exact = encoding.scores(
        long,
        q.float(),
        q,
        example.pos[:1],
        torch.arange(1000),
        (encoding.prepare(q, q.float(), q, 0)[0], 1000),
        0,
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = encoding.scores(
            long, q, q, example.pos[:1], torch.arange(1000), (encoding.prepare(q, q, q, 0)[0], 1000), 0
        )
    assert got.dtype == torch.float32 and torch.equal(got, exact)
    assert len(got[0, 0, 0].unique()) > 290  # a sum in bf16 stops at 256


def test_reversed_cumsum() -> None:
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    want = torch.stack([x[:, j:].sum(-1) for j in range(7)], dim=-1)
    assert apart(reversed_cumsum(x), want) < 1e-14
    assert torch.autograd.gradcheck(reversed_cumsum, (x,))


@pytest.mark.parametrize(
    "train_length, reach", [(1, 1), (4, 1), (16, 4), (64, 16), (256, 64), (512, 64), (1024, 64)]
)
def test_p_max_follows_the_training_length(train_length: int, reach: int) -> None:
    for shared, tables in ((False, 3), (True, 1)):
        encoding = build("cope", 2, 8, 3, train_length, shared=shared)
        assert isinstance(encoding, CoPE) and encoding.p_max == reach
        assert encoding.table.shape == (tables, reach + 1, 8)
        assert encoding.warnings() == []


def test_rows_that_no_window_reaches_are_said() -> None:
    assert Example().encoding("cope", p_max=TRAINED).warnings() == []
    [text] = Example().encoding("cope", p_max=TRAINED + 4).warnings()
    assert "17 to 20" in text


def test_starts_at_zero() -> None:
    encoding = built(Example())
    encoding.initialize("table", encoding.table.data, torch.Generator())
    assert not encoding.table.any()


@pytest.mark.parametrize("params", [{"p_max": 0}, {"p_max": -1}, {"p_max": 2.5}, {"shared": "yes"}])
def test_values_out_of_range_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(params))):
        Example().encoding("cope", **params)
