"""The decoder against a loop over tokens in float64, and what it asks of an encoding's hooks."""

import copy
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from tiny_decoder import SHAPE, VOCABULARY, BothPositions, Double, LayerWindow, OneKeyHead, Widened, norm
from tiny_model import encoding_of

from posenc.encodings.base import HOOKS, Shape
from posenc.model import kernels
from posenc.model.decoder import Decoder, initialize

WINDOW = 11
POS = torch.tensor([0, 1, 5, 6, 7, 20, 21, 30, 31, 40, 63])


def built(which, short_conv=None):
    own = encoding_of(which, WINDOW) if isinstance(which, str) else which(Shape(16, 2, 8, 2, WINDOW))
    model = Decoder(replace(SHAPE, short_conv=short_conv), VOCABULARY, own)
    initialize(model, 3)
    return model


def tokens(batch=2):
    return torch.randint(VOCABULARY, (batch, WINDOW), generator=torch.Generator().manual_seed(4))


def exactly(model, tokens, pos):
    """Logits (T, V) of BothPositions in float64, a token and a head at a time."""
    model = copy.deepcopy(model).double()
    e, width = model.encoding, SHAPE.head_dim
    stream = [model.embedding.weight[token] for token in tokens]
    for layer, block in enumerate(model.blocks):
        stream = [s + t / 8 * e.direction[layer] for s, t in zip(stream, pos, strict=True)]
        seen = [norm(s) for s in stream]
        if block.short_conv is not None:
            past = block.short_conv.weight[:, 0].unbind(-1)[::-1]  # of the token itself, the one before, ...
            seen = [
                x + sum(w * y for w, y in zip(past, seen[i::-1], strict=False)) for i, x in enumerate(seen)
            ]
        # [token][head] (D,)
        q, k, v = ([(w @ x).split(width) for x in seen] for w in block.attention.qkv.weight.chunk(3))
        for i, t in enumerate(pos):
            by_head = []
            for h in range(SHAPE.n_heads):
                psi = [math.log(1 + t - pos[j]) / math.log(2 + t) for j in range(i + 1)]
                scores = [q[i][h] @ k[j][h] / width**0.5 + e.weight[layer, h] * psi[j] for j in range(i + 1)]
                weights = torch.softmax(torch.stack(scores), 0)
                by_head.append(sum(weights[j] * v[j][h] for j in range(i + 1)))
            stream[i] = stream[i] + block.attention.out.weight @ torch.cat(by_head)
        up, down = block.mlp.up.weight, block.mlp.down.weight
        stream = [s + down @ F.relu(up @ norm(s)).square() for s in stream]
    return torch.stack([model.embedding.weight @ norm(s) for s in stream])


@pytest.mark.parametrize("short_conv", [None, 1, 4, 13])
@torch.no_grad()
def test_equals_a_loop_over_tokens_in_float64(short_conv):
    model, ids = built(BothPositions, short_conv), tokens()
    for row, text in zip(model(ids, POS), ids.tolist(), strict=True):
        assert (row.double() - exactly(model, text, POS.tolist())).abs().max() < 1e-5


ENCODINGS = ["shaw", "stick_breaking", "fox", "t5", BothPositions, LayerWindow, OneKeyHead, Widened]


@pytest.mark.parametrize("which", ENCODINGS)
@pytest.mark.parametrize("wanted", [3, WINDOW])
def test_blocks_of_queries_equal_one_block(which, wanted):
    """Numbers and gradients of the last tokens, whose scores are held four queries at a time."""
    model, ids = built(which), tokens()
    whole = model(ids, POS)[:, -wanted:]
    whole.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    watched = mock.patch.object(
        kernels.BiasAndMask, "bias", autospec=True, side_effect=kernels.BiasAndMask.bias
    )
    with kernels.changed_limits(max_scores=2 * 2 * WINDOW * 4), watched as bias:
        blocks = model(ids, POS, wanted)
    assert [call.args[1] for call in bias.call_args_list][:3] == [8, 4, 0]
    blocks.square().sum().backward()
    assert (blocks - whole).abs().max() < 3e-6
    for one, other in zip(gradients, (p.grad for p in model.parameters()), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_scores_are_scaled_in_float32_under_bf16():
    class Watching(Double):
        def scores(self, s, q, k, *others):
            assert s.dtype == torch.float32 and q.dtype == torch.bfloat16
            # a width of 8 makes the scale no power of two: scaling in bf16 would round once more
            assert torch.equal(s, (q @ k.transpose(-1, -2)).float() * SHAPE.head_dim**-0.5)
            return s

    with torch.autocast("cpu", dtype=torch.bfloat16):
        built(Watching)(tokens(), POS)


def test_a_hook_left_alone_is_never_called(monkeypatch):
    model = built(Double)
    for hook in set(HOOKS) - {"positions"}:
        monkeypatch.setattr(model.encoding, hook, None)  # whoever calls it fails
    model(tokens(), torch.arange(WINDOW))
