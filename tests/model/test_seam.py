"""Every hook of the seam through the real decoder, by encodings that are in no catalogue."""

import copy
from collections.abc import Callable

import pytest
import torch
from doubles import DOUBLES, Double
from naive import NAIVE, decode
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import HOOKS, Shape
from posenc.model.decoder import Decoder, ModelShape, initialize

SHAPE = ModelShape("double", d_model=16, n_layers=2, n_heads=2, mlp_ratio=2)
WINDOW, VOCABULARY = 11, 13

every_double = pytest.mark.parametrize("double", DOUBLES)


def built(double: type[Double]) -> Decoder:
    shape = Shape(SHAPE.d_model, SHAPE.n_heads, SHAPE.head_dim, SHAPE.n_layers, WINDOW)
    model = Decoder(SHAPE, VOCABULARY, double(shape))
    initialize(model, 3)
    return model


def tokens(batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, WINDOW), generator=torch.Generator().manual_seed(4))


def positions(model: Decoder) -> Tensor:
    return model.positions(WINDOW, generator_for(0, "test"))


def test_the_doubles_use_every_hook() -> None:
    assert set(HOOKS) == set().union(*(double.hooks.func(built(double).encoding) for double in DOUBLES))


@every_double
@torch.no_grad()
def test_equals_a_loop_over_tokens_in_float64(double: type[Double]) -> None:
    model, ids = built(double), tokens()
    pos = positions(model)
    got = model(ids, pos)
    exact = copy.deepcopy(model).double()
    naive = NAIVE[double](exact.encoding)
    for b in range(len(ids)):
        want = decode(exact, ids[b].tolist(), pos.tolist(), naive)
        assert (got[b].double() - want).abs().max() < 1e-5


@every_double
@torch.no_grad()
def test_causal_bit_for_bit(double: type[Double]) -> None:
    model, ids = built(double), tokens()
    pos, changed = positions(model), ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % VOCABULARY
    before, after = model(ids, pos), model(changed, pos)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


@every_double
def test_gradients_reach_every_parameter(double: type[Double]) -> None:
    model = built(double)
    loss = model(tokens(), positions(model)).logsumexp(-1).square().sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


@every_double
@pytest.mark.parametrize("most", [1, 2 * 2 * WINDOW * 4])  # scores held: one query, four queries at a time
def test_blocks_of_queries_equal_one_block(
    double: type[Double], most: int, hold_at_most: Callable[[int], list[int]]
) -> None:
    model, ids = built(double), tokens()
    pos = positions(model)
    whole = model(ids, pos)
    whole.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    starts = hold_at_most(most)
    blocks = model(ids, pos)
    assert starts[: len(starts) // 2] == list(range(0, WINDOW, 1 if most == 1 else 4))[::-1]
    blocks.square().sum().backward()
    assert (blocks - whole).abs().max() < 3e-6
    for one, other in zip(gradients, (p.grad for p in model.parameters()), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


@every_double
@pytest.mark.parametrize("wanted", [1, 4, WINDOW])
@pytest.mark.parametrize("most", [1 << 24, 100])
@torch.no_grad()
def test_wanted_is_the_tail_of_the_whole(
    double: type[Double], wanted: int, most: int, hold_at_most: Callable[[int], list[int]]
) -> None:
    hold_at_most(most)
    model, ids = built(double), tokens()
    pos = positions(model)
    got = model(ids, pos, wanted)
    assert got.shape == (2, wanted, VOCABULARY)
    assert (got - model(ids, pos)[:, -wanted:]).abs().max() < 3e-6


@every_double
@torch.no_grad()
def test_finite_under_bf16(double: type[Double]) -> None:
    model, ids = built(double), tokens()
    pos = positions(model)
    exact = model(ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(ids, pos)
    assert rounded.isfinite().all()
    # logits of unit variance; bf16 keeps 8 bits, and the doubles' parameters are large on purpose
    assert (rounded.float() - exact).square().mean().sqrt() < 0.1


@torch.no_grad()
def test_scores_are_scaled_in_float32_under_bf16() -> None:
    class Watching(Double):
        def scores(
            self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: object, layer: int
        ) -> Tensor:
            assert s.dtype == torch.float32 and q.dtype == torch.bfloat16
            # a width of 8 makes the scale no power of two: scaling in bf16 would round once more
            assert torch.equal(s, (q @ k.transpose(-1, -2)).float() * SHAPE.head_dim**-0.5)
            return s

    model = built(Watching)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(tokens(), positions(model))


def test_a_hook_left_alone_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*arguments: object) -> None:
        raise AssertionError("a hook that does nothing was called")

    class Plain(Double):
        pass

    model = built(Plain)
    for hook in set(HOOKS) - {"positions"}:
        monkeypatch.setattr(model.encoding, hook, called)
    model(tokens(), torch.arange(WINDOW))
