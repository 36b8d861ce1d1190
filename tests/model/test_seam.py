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
    """Build a decoder with an encoding by its name or of a class, with initial values."""
    shape = Shape(16, 2, 8, 2, WINDOW)
    encoding = encoding_of(which, WINDOW) if isinstance(which, str) else which(shape)
    model = Decoder(replace(SHAPE, short_conv=short_conv), VOCABULARY, encoding)
    initialize(model, 3)
    return model


def tokens(batch=2):
    return torch.randint(VOCABULARY, (batch, WINDOW), generator=torch.Generator().manual_seed(4))


def exactly(model, tokens, pos):
    """Return logits (T, V) of BothPositions in float64, a token and a head at a time."""
    model = copy.deepcopy(model).double()
    direction = model.encoding.direction
    stream = [model.embedding.weight[token] for token in tokens]
    for layer, block in enumerate(model.blocks):
        stream = [x + t / 8 * direction[layer] for x, t in zip(stream, pos, strict=True)]
        inputs = [norm(x) for x in stream]
        if block.short_conv is not None:
            inputs = convolved(inputs, block.short_conv.weight[:, 0])
        attended = attend_exactly(block.attention, model.encoding.weight[layer], inputs, pos)
        stream = [x + y for x, y in zip(stream, attended, strict=True)]
        up = block.mlp.up.weight
        down = block.mlp.down.weight
        stream = [x + down @ F.relu(up @ norm(x)).square() for x in stream]
    return torch.stack([model.embedding.weight @ norm(x) for x in stream])


def convolved(inputs, weight):
    """Add to each token (d,) a weighted sum of itself and those before; weight (d, taps), oldest first."""
    taps = weight.unbind(-1)[::-1]  # of the token itself, of the token before it, ...
    outputs = []
    for i, x in enumerate(inputs):
        past = inputs[i::-1]
        outputs.append(x + sum(tap * y for tap, y in zip(taps, past, strict=False)))
    return outputs


def attend_exactly(attention, bias_weight, inputs, pos):
    """Return what attention adds to each token (d,)."""
    width = SHAPE.head_dim
    w_q, w_k, w_v = attention.qkv.weight.chunk(3)
    q = [(w_q @ x).split(width) for x in inputs]  # [token][head] (D,)
    k = [(w_k @ x).split(width) for x in inputs]
    v = [(w_v @ x).split(width) for x in inputs]
    outputs = []
    for i, t in enumerate(pos):
        by_head = []
        for h in range(SHAPE.n_heads):
            scores = []
            for j in range(i + 1):
                psi = math.log(1 + t - pos[j]) / math.log(2 + t)
                scores.append(q[i][h] @ k[j][h] / width**0.5 + bias_weight[h] * psi)
            weights = torch.softmax(torch.stack(scores), 0)
            by_head.append(sum(weights[j] * v[j][h] for j in range(i + 1)))
        outputs.append(attention.out.weight @ torch.cat(by_head))
    return outputs


@pytest.mark.parametrize("short_conv", [None, 1, 4, 13])
@torch.no_grad()
def test_equals_a_loop_over_tokens_in_float64(short_conv):
    model = built(BothPositions, short_conv)
    ids = tokens()
    for logits, text in zip(model(ids, POS), ids.tolist(), strict=True):
        expected = exactly(model, text, POS.tolist())
        assert (logits.double() - expected).abs().max() < 1e-5


ENCODINGS = ["shaw", "stick_breaking", "fox", "t5", BothPositions, LayerWindow, OneKeyHead, Widened]


@pytest.mark.parametrize("which", ENCODINGS)
@pytest.mark.parametrize("wanted", [3, WINDOW])
def test_blocks_of_queries_equal_one_block(which, wanted):
    """Compare numbers and gradients of the last tokens, whose scores are held four queries at a time."""
    model = built(which)
    ids = tokens()
    logits = model(ids, POS)[:, -wanted:]
    logits.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()

    watched = mock.patch.object(
        kernels.BiasAndMask, "bias", autospec=True, side_effect=kernels.BiasAndMask.bias
    )
    with kernels.changed_limits(max_scores=2 * 2 * WINDOW * 4), watched as bias:
        logits_of_blocks = model(ids, POS, wanted)
    logits_of_blocks.square().sum().backward()

    first_queries = [call.args[1] for call in bias.call_args_list]
    assert first_queries[:3] == [8, 4, 0]
    assert (logits_of_blocks - logits).abs().max() < 3e-6
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_scores_are_scaled_in_float32_under_bf16():
    class Watching(Double):
        def scores(self, s, q, k, *others):
            assert s.dtype == torch.float32
            assert q.dtype == torch.bfloat16
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
