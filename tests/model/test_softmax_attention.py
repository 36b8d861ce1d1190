"""Attention in blocks of queries, whose gradient is written out, against the plain formula."""

import pytest
import torch
from backward import check_same, drawn, gradients

from posenc.model.softmax_attention import QueryBlock, Scoring, softmax_attention

SCALE = 0.3
BATCH, HEADS, QUERIES, KEYS = 3, 2, 5, 7
AT_ONCE = [QueryBlock(0, 5, 7)]
# queries 2 and 3 meet a key more than they may see, as kernels do to keep sizes few
IN_BLOCKS = [QueryBlock(4, 5, 7), QueryBlock(2, 4, 7), QueryBlock(1, 2, 4), QueryBlock(0, 1, 3)]


def qkv(dtype, key_heads=HEADS):
    """Values wider than queries."""
    q = drawn(BATCH, HEADS, QUERIES, 4, dtype=dtype)
    return q, drawn(BATCH, key_heads, KEYS, 4, dtype=dtype), drawn(BATCH, HEADS, KEYS, 6, dtype=dtype)


def mask(dtype):
    is_future = torch.ones(QUERIES, KEYS, dtype=torch.bool).triu(KEYS - QUERIES + 1)
    return torch.zeros(1, QUERIES, KEYS, dtype=dtype).masked_fill(is_future, float("-inf"))


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
@pytest.mark.parametrize("blocks", [AT_ONCE, IN_BLOCKS])
@pytest.mark.parametrize("key_heads", [HEADS, 1])
@pytest.mark.parametrize("kind", additives(torch.float32))
def test_numbers_and_gradients_are_those_of_the_plain_formula(kind, key_heads, blocks, dtype):
    additive = additives(dtype)[kind]
    is_learned = additive.requires_grad
    hidden = mask(additive.dtype)
    inputs = (*qkv(dtype, key_heads), additive)

    def in_blocks(q, k, v, additive):
        masked = additive + hidden

        def of_block(block):
            return masked[:, block.start : block.stop, : block.keys]

        return softmax_attention(q, k, v, blocks, Scoring(SCALE, of_block, is_learned))

    computed = gradients(in_blocks, *inputs)
    expected = gradients(lambda q, k, v, additive: plain(q, k, v, additive + hidden), *inputs)
    check_same(computed, expected, dtype)
    assert len(computed) == (5 if is_learned else 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("blocks", [AT_ONCE, IN_BLOCKS])
@pytest.mark.parametrize("kind", additives(torch.float32))
def test_with_a_sink_numbers_and_gradients_are_those_of_a_softmax_with_one_more_key(kind, blocks, dtype):
    wide = torch.promote_types(dtype, torch.float32)
    additive = additives(wide)[kind]
    is_learned = additive.requires_grad
    hidden = mask(wide)
    sink = torch.tensor([0.5, -2.0], dtype=wide, requires_grad=True)  # (H,)

    def in_blocks(q, k, v, additive, sink):
        masked = additive + hidden

        def of_block(block):
            return masked[:, block.start : block.stop, : block.keys]

        return softmax_attention(q, k, v, blocks, Scoring(SCALE, of_block, is_learned, sink))

    def with_one_more_key(q, k, v, additive, sink):
        s = (q @ k.transpose(-1, -2)).to(wide) * SCALE + additive + hidden
        s = torch.cat((s, sink[:, None, None].expand(BATCH, -1, QUERIES, 1)), dim=-1)
        return torch.softmax(s, -1)[..., :-1].to(v.dtype) @ v

    inputs = (*qkv(dtype), additive, sink)
    computed = gradients(in_blocks, *inputs)
    # in bf16 weights are rounded before the gradients are made of them: 1.2e-2 off for a bias of all heads
    check_same(computed, gradients(with_one_more_key, *inputs), dtype, slack=2)
