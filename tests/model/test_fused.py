"""Gradients written out (norm, activation, loss, attention) against autograd's of the plain formula."""

import pytest
import torch
import torch.nn.functional as F

from posenc.model import fused
from posenc.model.kernels import Block, softmax_attention


def drawn(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def gradients(f, *inputs):
    out = f(*inputs)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return [out, *torch.autograd.grad(out, [x for x in inputs if x.requires_grad], weights.to(out.dtype))]


def check_same(got, wanted, dtype):
    assert len(got) == len(wanted) > 1
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        off = (one.double() - other.double()).norm() / other.double().norm()
        assert off < {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]


def plain_loss(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def plain_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_and_gradients_are_those_of_the_plain_formula(dtype):
    for f, plain, *given in (
        (fused.rms_norm, plain_norm, drawn(3, 4, 8, dtype=torch.float32), drawn(8).float()),
        (fused.squared_relu, lambda x: F.relu(x).square(), drawn(3, 9, dtype=dtype)),
        (fused.next_token_loss, plain_loss, *(drawn(n, 8, dtype=dtype) for n in (9, 11)), torch.arange(9)),
    ):
        check_same(gradients(f, *given), gradients(plain, *given), dtype)


def test_a_norm_for_a_product_is_rounded_once():
    x, weight = drawn(4, 16, dtype=torch.float32), drawn(16).float()
    assert fused.rms_norm_for_product(x, weight).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        rounded, whole = fused.rms_norm_for_product(x, weight), fused.rms_norm(x, weight)
    assert (rounded.dtype, whole.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(rounded, whole.to(torch.bfloat16))


@pytest.mark.parametrize("most", [1, 3 * 11, 1 << 20])
def test_blocks_of_logits(most, monkeypatch):
    hidden, weight, targets = *(drawn(n, 8, dtype=torch.float32) for n in (9, 11)), torch.arange(9)
    wanted = gradients(plain_loss, hidden, weight, targets)
    monkeypatch.setattr(fused, "MAX_LOGITS", most)
    sizes = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, dim: (sizes.append(x.numel()), softmax(x, dim))[1])
    check_same(gradients(fused.next_token_loss, hidden, weight, targets), wanted, torch.float32)
    assert max(sizes) <= max(most, 11) and sum(sizes) == 9 * 11
    each = fused.token_losses(hidden, weight, targets)
    assert each.shape == (9,) and torch.allclose(each.mean(), wanted[0], atol=1e-6)


def test_a_hopeless_target_has_a_finite_loss():
    """Its weight is 0 in float32, its loss 300 nats."""
    hidden, weight = torch.tensor([[300.0]]).requires_grad_(), torch.tensor([[1.0], [0.0]])
    out = fused.next_token_loss(hidden, weight, torch.tensor([1]))
    out.backward()
    assert out.item() == pytest.approx(300) and hidden.grad.item() == pytest.approx(1)


SCALE = 0.3
BATCH, HEADS, QUERIES, KEYS = 3, 2, 5, 7
WHOLE = [Block(0, 5, 7)]
# queries 2 and 3 are given a key more than they may see, as kernels do to keep sizes few
IN_BLOCKS = [Block(4, 5, 7), Block(2, 4, 7), Block(1, 2, 4), Block(0, 1, 3)]


def qkv(dtype, key_heads=HEADS):
    """Values wider than queries."""
    q = drawn(BATCH, HEADS, QUERIES, 4, dtype=dtype)
    return q, drawn(BATCH, key_heads, KEYS, 4, dtype=dtype), drawn(BATCH, HEADS, KEYS, 6, dtype=dtype)


def mask(dtype):
    hidden = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(KEYS - QUERIES + 1)
    return torch.zeros(1, QUERIES, KEYS, dtype=dtype).masked_fill(hidden, float("-inf"))


def plain(q, k, v, additive):
    s = (q @ k.transpose(-1, -2)).to(additive.dtype) * SCALE + additive
    return torch.softmax(s, -1).to(v.dtype) @ v


def additives(dtype):
    wide = torch.promote_types(dtype, torch.float32)
    return {
        "mask": mask(dtype),
        "fixed bias": drawn(HEADS, QUERIES, KEYS, dtype=wide).detach() + mask(wide),
        "learned bias": drawn(HEADS, QUERIES, KEYS, dtype=wide),
        "one learned bias": drawn(1, QUERIES, KEYS, dtype=wide),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("blocks", [WHOLE, IN_BLOCKS])
@pytest.mark.parametrize("key_heads", [HEADS, 1])
@pytest.mark.parametrize("kind", additives(torch.float32))
def test_attention_in_blocks(kind, key_heads, blocks, dtype):
    additive = additives(dtype)[kind]
    hidden, learned, made = mask(additive.dtype), additive.requires_grad, (*qkv(dtype, key_heads), additive)

    def in_blocks(q, k, v, a):
        masked = a + hidden
        return softmax_attention(
            q, k, v, blocks, lambda b: masked[:, b.start : b.stop, : b.keys], SCALE, learned
        )

    got = gradients(in_blocks, *made)
    check_same(got, gradients(lambda q, k, v, a: plain(q, k, v, a + hidden), *made), dtype)
    assert len(got) == (5 if learned else 4)
