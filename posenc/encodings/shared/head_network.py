"""A small network over the heads at every pair of tokens: from scores and biases to changes of the scores."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Pairs of tokens in a chunk. One CPU core is fastest from 8000 to 16 000.
PAIRS = 1 << 14
PAIRS_GPU = 1 << 22
LEAK = 0.01  # slope of the leaky ReLU below zero


class Chunk(NamedTuple):
    """Queries from `start` to `stop`, and the number of keys that the last of them sees."""

    start: int
    stop: int
    keys: int


def head_network(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 leaky_relu(w1 [z; b] + b1) + b2 for z (B, H, T, S), b (H, T, S) -> (B, H, T, S), future zero.

    w1 (K, 2H), b1 (K,), w2 (H, K), b2 (H,); the queries are the last T of the S keys' tokens. Hidden numbers
    of all pairs would be 130 MB a layer (K = 32, 512 tokens, batch 4): they are computed a chunk at a time,
    and again in the backward pass. With the plain formula a step of nano with `dape` takes 1.26 times as long
    at T = 64, and 1.02 (fp32) and 1.25 times (bf16) as long at T = 512 (scripts/bench/backward_passes.py).
    """
    with torch.autocast(z.device.type, enabled=False):  # products of 2H numbers: casts would cost more
        output: Tensor = _HeadNetwork.apply(z, b, w1.float(), b1.float(), w2.float(), b2.float())
    return output


def _chunks(z: Tensor) -> Iterator[Chunk]:
    """Yield the chunks of scores z (B, H, T, S), the last queries first.

    Those see the most keys, so the other chunks use their memory again.
    """
    batch, _, queries, keys = z.shape
    largest = PAIRS_GPU if z.is_cuda else PAIRS
    stop = queries
    while stop > 0:
        seen = keys - queries + stop
        start = max(0, stop - max(1, largest // (batch * seen)))
        yield Chunk(start, stop, seen)
        stop = start


def _pairs(z: Tensor, b: Tensor, chunk: Chunk) -> Tensor:
    """Return [z; b] of a chunk: (2H, B * rows * keys)."""
    start, stop, keys = chunk
    scores = z[:, :, start:stop, :keys].transpose(0, 1)  # (H, B, rows, keys)
    biases = b[:, None, start:stop, :keys].expand_as(scores)
    return torch.cat((scores, biases)).flatten(1)


def _network(pairs: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Apply the network to every pair, (2H, n) -> (H, n)."""
    hidden = F.leaky_relu(torch.addmm(b1[:, None], w1, pairs), LEAK)  # (K, n)
    return torch.addmm(b2[:, None], w2, hidden)


class _HeadNetwork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(z, b, *weights)
        output = torch.zeros_like(z)
        for chunk in _chunks(z):
            start, stop, keys = chunk
            mixed = _network(_pairs(z, b, chunk), *weights)  # (H, n)
            by_query = mixed.view(z.shape[1], z.shape[0], stop - start, keys)
            output[:, :, start:stop, :keys] = by_query.transpose(0, 1)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (d_output,) = gradients
        z, b, *saved = ctx.saved_tensors
        weights = [weight.detach().requires_grad_() for weight in saved]
        d_z = torch.zeros_like(z)
        d_b = torch.zeros_like(b)
        d_weights = [torch.zeros_like(weight) for weight in saved]
        for chunk in _chunks(z):
            start, stop, keys = chunk
            pairs = _pairs(z, b, chunk).requires_grad_()  # (2H, n)
            d_mixed = d_output[:, :, start:stop, :keys].transpose(0, 1).flatten(1)  # (H, n)
            # The caller of a backward pass may still be inside its autocast.
            with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
                d_pairs, *d_chunk = torch.autograd.grad(_network(pairs, *weights), (pairs, *weights), d_mixed)
            for total, addend in zip(d_weights, d_chunk, strict=True):
                total += addend
            d_scores, d_biases = d_pairs.view(2, z.shape[1], z.shape[0], stop - start, keys)
            d_z[:, :, start:stop, :keys] = d_scores.transpose(0, 1)
            d_b[:, start:stop, :keys] = d_biases.sum(1)
        return d_z, d_b, *d_weights
