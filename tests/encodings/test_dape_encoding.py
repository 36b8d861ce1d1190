import math

import pytest
import torch
import torch.nn.functional as F
from formulas_relative import (
    HEADS,
    LAYERS,
    NEAR,
    PLACES,
    POSITIONS,
    TOKENS,
    WIDTH,
    Example,
    WholeDAPE,
    apart,
    build,
    dape,
    largest_made,
    off_by,
)
from torch import Tensor

from posenc.encodings.alibi import ALiBi
from posenc.encodings.dape import DAPE
from posenc.encodings.families import content
from posenc.encodings.families.content import over_heads
from posenc.encodings.kerple_log import KerpleLog
from posenc.model import kernels


def built(example: Example, bias: str = "kerple_log", hidden: int = 5) -> DAPE:
    encoding = example.encoding("dape", bias=bias, hidden=hidden)
    assert isinstance(encoding, DAPE)
    return encoding


@pytest.mark.parametrize("pos", POSITIONS.values(), ids=list(POSITIONS))
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("bias, hidden", [("kerple_log", 5), ("kerple_log", 32), ("alibi", 1)])
@torch.no_grad()
def test_formula(bias: str, hidden: int, layer: int, pos: list[int]) -> None:
    example = Example(pos)
    encoding = built(example, bias, hidden)
    want = example.formula(dape(example, encoding, layer))
    # slopes times distances to 65 536 leave float32 scores of thousands fewer digits
    allowed = 2e-5 if bias == "kerple_log" or max(pos) - min(pos) < 2000 else 1e-2
    assert apart(example.output(encoding, layer), want) < allowed


@pytest.mark.parametrize("bias", ["kerple_log", "alibi"])
@torch.no_grad()
def test_one_head(bias: str) -> None:
    example = Example(heads=1)
    encoding = built(example, bias)
    assert apart(example.output(encoding, 0), example.formula(dape(example, encoding, 0))) < 5e-6


@pytest.mark.parametrize("reach, wanted", [(5, None), (None, 3), (3, 1)])
@torch.no_grad()
def test_formula_with_a_window_and_for_the_last_tokens(reach: int | None, wanted: int | None) -> None:
    example = Example(POSITIONS["drawn"])
    encoding = built(example)
    got = example.output(encoding, 1, reach=reach, wanted=wanted)
    want = example.formula(dape(example, encoding, 1), reach=reach, wanted=wanted)
    assert apart(got, want) < 5e-6


@pytest.mark.parametrize("most", [1, HEADS * TOKENS * 3])
@torch.no_grad()
def test_blocks_of_queries(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    example = Example()
    encoding = built(example)
    whole = example.output(encoding, 1)
    monkeypatch.setattr(kernels, "MAX_SCORES", most)
    assert apart(example.output(encoding, 1), whole) < 2e-6


@pytest.mark.parametrize("bias", ["kerple_log", "alibi"])
def test_gradients(bias: str) -> None:
    example = Example()
    encoding = built(example, bias)
    (example.output(encoding, 0) * example.loss).sum().backward()
    found = {name: p.grad for name, p in encoding.named_parameters()}
    exact = encoding.double()
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            grad = found[name]
            assert grad is not None
            rest = (1,) * (parameter.ndim - 1)
            want = example.numeric_gradient(
                lambda: example.formula(dape(example, exact, 0)), parameter, (0, *rest)
            )
            assert grad[(0, *rest)].item() == pytest.approx(want, rel=2e-3, abs=1e-5), name
            if not name.startswith("static"):
                assert not grad[1].any()  # the other layer


def random_network(batch: int, queries: int, keys: int, hidden: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    sizes = [(batch, 3, queries, keys), (3, queries, keys), (hidden, 6), (hidden,), (3, hidden), (3,)]
    return [torch.randn(size, generator=generator, requires_grad=True) for size in sizes]


def plainly(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """With the hidden numbers of every pair at once, the future at zero."""
    pairs = torch.cat((z, b.expand_as(z)), dim=1).permute(0, 2, 3, 1)  # (B, T, S, 2H)
    out = F.linear(F.leaky_relu(F.linear(pairs, w1, b1), 0.01), w2, b2).permute(0, 3, 1, 2)
    return out * torch.ones(z.shape[-2:]).tril(z.shape[-1] - z.shape[-2])


@pytest.mark.parametrize("pairs", [1, 40, 1 << 20])
@pytest.mark.parametrize("queries, keys", [(9, 9), (4, 9), (1, 1)])
def test_chunks_of_the_network(queries: int, keys: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PAIRS", pairs)
    given = random_network(2, queries, keys)
    past = torch.ones(queries, keys).tril(keys - queries)
    loss = torch.randn(2, 3, queries, keys, generator=torch.Generator().manual_seed(6)) * past
    got, want = over_heads(*given), plainly(*given)
    assert got.isfinite().all()
    assert apart(got * past, want) < 1e-5
    got_grads = torch.autograd.grad((got * loss).sum(), given)
    want_grads = torch.autograd.grad((want * loss).sum(), given)
    for one, other in zip(got_grads, want_grads, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_gradients_inside_autocast_are_float32s() -> None:
    given = random_network(1, 5, 5)
    want = torch.autograd.grad(over_heads(*given).square().sum(), given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = over_heads(*given)
        assert out.dtype == torch.float32
        got = torch.autograd.grad(out.square().sum(), given)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
def test_chunks_hold_no_more_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PAIRS", 100)
    z = torch.zeros(2, 1, 30, 40)
    chunks = list(content._chunks(z))
    rows = sorted(row for start, stop, _ in chunks for row in range(start, stop))
    assert rows == list(range(30))
    for start, stop, seen in chunks:
        assert seen == 10 + stop
        assert stop - start == 1 or 2 * (stop - start) * seen <= 100


@pytest.mark.parametrize("pos", PLACES.values(), ids=list(PLACES))
@pytest.mark.parametrize("bias, hidden", [("kerple_log", 5), ("alibi", 32)])
def test_whole_decoder(bias: str, hidden: int, pos: list[int]) -> None:
    assert off_by(WholeDAPE, "dape", pos, bias=bias, hidden=hidden) < 2e-5


def test_hidden_numbers_are_never_there_for_every_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, hidden = 64, 32
    example = Example(list(range(tokens)))
    encoding = built(example, hidden=hidden)

    def largest() -> int:
        return largest_made(lambda: example.output(encoding, 0).sum().backward())

    assert largest() >= hidden * tokens * tokens  # one chunk: the measure sees them
    monkeypatch.setattr(content, "PAIRS", tokens)  # a query at a time, [z; b] of 2H numbers beside it
    assert HEADS * tokens * tokens <= largest() <= 2 * HEADS * tokens * tokens < hidden * tokens * tokens


def test_a_chunk_is_small_unless_told() -> None:
    tokens, hidden = 256, 32
    example = Example(list(range(tokens)))
    encoding = built(example, hidden=hidden)
    largest = largest_made(lambda: example.output(encoding, 0).sum().backward())
    assert largest <= hidden * content.PAIRS <= hidden * tokens * tokens / 4


@torch.no_grad()
def test_by_hand() -> None:
    # two heads, one hidden unit that reads the other head's score and bias: r = 1 with slopes 1/16 and 1/256
    example = Example([0, 1], heads=2)
    encoding = built(example, "alibi", hidden=1)
    for parameter in encoding.parameters():
        parameter.zero_()
    encoding.w1[0, 0] = torch.tensor([0.0, 1.0, 0.0, 256.0])
    encoding.w2[0] = torch.tensor([[3.0], [0.0]])
    encoding.b2[0] = torch.tensor([0.0, 0.5])
    pos = torch.arange(2)
    for score, unit in ((4.0, 3.0), (-1.0, -0.02)):  # leaky_relu(score - 1)
        s = torch.tensor([7.0, score])[None, :, None, None].expand(1, 2, 2, 2)
        q = torch.zeros(1, 2, 2, WIDTH)
        got = encoding.scores(s, q, q, pos, pos, None, 0)[0, :, 1, 0].tolist()
        assert got == pytest.approx([7 - 1 / 16 + 3 * unit, score - 1 / 256 + 0.5], abs=1e-6)


@torch.no_grad()
def test_a_changed_key_of_one_head_reaches_the_others_at_that_pair_alone() -> None:
    example = Example()
    encoding = built(example)
    pos = torch.tensor(NEAR)
    s = torch.randn(1, HEADS, TOKENS, TOKENS)
    changed = s.clone()
    changed[0, 0, 12, 5] += 1
    moved = (
        encoding.scores(changed, s, s, pos, pos, None, 0) != encoding.scores(s, s, s, pos, pos, None, 0)
    )[0]
    assert moved[:, 12, 5].all()
    moved[:, 12, 5] = False
    assert not moved.any()


@torch.no_grad()
def test_bf16_changes_the_scores_no_more_than_without_it() -> None:
    example = Example()
    encoding = built(example)
    pos = torch.tensor(NEAR)
    s = torch.randn(1, HEADS, TOKENS, TOKENS)
    exact = encoding.scores(s, s, s, pos, pos, None, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(encoding.scores(s, s, s, pos, pos, None, 0), exact)


def test_start_and_count() -> None:
    encoding = build("dape", 4, 32, 3, 64)
    assert isinstance(encoding, DAPE) and isinstance(encoding.static, KerpleLog)
    alone = build("kerple_log", 4, 32, 3, 64)
    for name, parameter in encoding.named_parameters():
        encoding.initialize(name, parameter.data, torch.Generator().manual_seed(0))
        if name.startswith("static."):
            own = alone.get_parameter(name.removeprefix("static."))
            alone.initialize(name.removeprefix("static."), own.data, torch.Generator().manual_seed(0))
            assert torch.equal(own, parameter)
    for parameter, fan_in in ((encoding.w1, 8), (encoding.b1, 8), (encoding.w2, 32), (encoding.b2, 32)):
        bound = 1 / math.sqrt(fan_in)
        assert 0.7 * bound < parameter.abs().max() <= bound
        assert parameter.min() < 0 < parameter.max()
    assert encoding.w1.std().item() == pytest.approx(8**-0.5 / math.sqrt(3), rel=0.05)
    assert sum(p.numel() for p in encoding.parameters()) == 3 * (32 * 13 + 4) + 8


def test_settings() -> None:
    with pytest.raises(Exception, match="hidden=0: must be at least 1"):
        build("dape", 2, 8, 1, 16, hidden=0)
    encoding = build("dape", 2, 8, 1, 16, bias="alibi")
    assert isinstance(encoding, DAPE) and isinstance(encoding.static, ALiBi)
    assert not list(encoding.static.parameters())
