"""Every hook of the seam through the real decoder, by encodings that are in no catalogue."""

import pytest
import torch
from decoding import NAIVE, SHAPE, VOCABULARY, Double, exactly
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import HOOKS, Shape
from posenc.model import kernels
from posenc.model.decoder import Decoder, initialize

WINDOW = 11

every_double = pytest.mark.parametrize("double", NAIVE)


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
    assert set(HOOKS) == set().union(*(double.hooks.func(built(double).encoding) for double in NAIVE))


@every_double
@torch.no_grad()
def test_equals_a_loop_over_tokens_in_float64(double: type[Double]) -> None:
    model, ids = built(double), tokens()
    pos = positions(model)
    got = model(ids, pos)
    for row, text in zip(got, ids.tolist(), strict=True):
        want = exactly(model, text, lambda wide: NAIVE[double](wide.encoding), pos.tolist())
        assert (row.double() - want).abs().max() < 1e-5


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
@pytest.mark.parametrize("wanted", [3, WINDOW])
def test_blocks_of_queries_equal_one_block(
    double: type[Double], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and gradients of the last tokens, whose scores are held four queries at a time."""
    model, ids = built(double), tokens()
    pos = positions(model)
    whole = model(ids, pos)[:, -wanted:]
    whole.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    starts: list[int] = []
    bias = kernels.Masked.bias

    def recording(self: kernels.Masked, start: int, stop: int, seen: int) -> Tensor:
        starts.append(start)
        return bias(self, start, stop, seen)

    monkeypatch.setattr(kernels, "MAX_SCORES", 2 * 2 * WINDOW * 4)
    monkeypatch.setattr(kernels.Masked, "bias", recording)
    blocks = model(ids, pos, wanted)
    assert starts[:3] == [8, 4, 0]
    blocks.square().sum().backward()
    assert (blocks - whole).abs().max() < 3e-6
    for one, other in zip(gradients, (p.grad for p in model.parameters()), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


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
