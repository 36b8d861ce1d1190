"""A small network at every pair of tokens, which reads the scores and biases of all heads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

PAIRS = 1 << 14  # pairs of tokens in a chunk; one CPU core is fastest from 8000 to 16 000
PAIRS_GPU = 1 << 22  # the same on a GPU
LEAK = 0.01  # slope of the leaky ReLU below zero


class Chunk(NamedTuple):
    """Queries from `start` to `stop`, and the number of keys that the last of them sees."""

    start: int
    stop: int
    keys: int


class Sizes(NamedTuple):
    """The sizes of scores (B, H, T, S)."""

    batch: int
    heads: int
    queries: int
    keys: int


def head_network(scores: Tensor, biases: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 leaky_relu(w1 [scores; biases] + b1) + b2, the network's output at every pair of tokens.

    scores   (B, H, T, S); the T queries are the last T of the S tokens
    biases   (H, T, S), of each pair by its distance
    w1, b1   (K, 2H), (K,)
    w2, b2   (H, K), (H,)
    returns  (B, H, T, S), with zeros where the key lies in the future

    Hidden numbers of all pairs would be 130 MB a layer (K = 32, 512 tokens, batch 4). They are computed a
    chunk at a time, and again in the backward pass.

    By the plain formula a training step of the model `nano` with `dape` takes longer: 1.26 times at T = 64;
    at T = 512 1.25 times in bf16, and 1.02 times in fp32 (scripts/bench/backward_passes.py).
    """
    # In float32: casts to bf16 would take longer than such small products.
    with torch.autocast(scores.device.type, enabled=False):
        output: Tensor = _HeadNetwork.apply(scores, biases, w1.float(), b1.float(), w2.float(), b2.float())
    return output


def _chunks(scores: Tensor) -> Iterator[Chunk]:
    """Yield the chunks of scores (B, H, T, S), the last queries first.

    The last queries see the most keys, so the later, smaller chunks fit into the memory of the first one.
    """
    sizes = Sizes(*scores.shape)
    most_pairs = PAIRS_GPU if scores.is_cuda else PAIRS
    stop = sizes.queries
    while stop > 0:
        seen = sizes.keys - sizes.queries + stop
        # At least one query, also where a single one has more pairs than a chunk should.
        rows = max(1, most_pairs // (sizes.batch * seen))
        start = max(0, stop - rows)
        yield Chunk(start, stop, seen)
        stop = start


def _pairs(scores: Tensor, biases: Tensor, chunk: Chunk) -> Tensor:
    """Return [scores; biases] of a chunk: (2H, B * rows * keys)."""
    start, stop, keys = chunk
    chunk_scores = scores[:, :, start:stop, :keys].transpose(0, 1)  # (H, B, rows, keys)
    chunk_biases = biases[:, None, start:stop, :keys].expand_as(chunk_scores)
    return torch.cat((chunk_scores, chunk_biases)).flatten(1)


def _network(pairs: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Apply the network to every pair, (2H, n) -> (H, n)."""
    # Pairs are columns, so that scores of a head stay side by side in memory as they are.
    before_relu = torch.addmm(b1[:, None], w1, pairs)  # (K, n)
    hidden = F.leaky_relu(before_relu, LEAK)
    return torch.addmm(b2[:, None], w2, hidden)


class _HeadNetwork(torch.autograd.Function):
    """Apply the network chunk by chunk; the backward pass computes each chunk again, with autograd."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, biases: Tensor, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(scores, biases, *weights)
        sizes = Sizes(*scores.shape)
        # Zeros, since chunks leave out the keys that no query of theirs sees.
        output = torch.zeros_like(scores)
        for chunk in _chunks(scores):
            start, stop, keys = chunk
            pairs = _pairs(scores, biases, chunk)  # (2H, n)
            mixed = _network(pairs, *weights)  # (H, n)
            by_query = mixed.view(sizes.heads, sizes.batch, stop - start, keys)
            output[:, :, start:stop, :keys] = by_query.transpose(0, 1)
        return output

    # The gradient for the scores has no graph. A second derivative would lose that part in silence.
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (d_output,) = gradients
        scores, biases, *saved = ctx.saved_tensors
        sizes = Sizes(*scores.shape)
        # Detached, so that each chunk's graph ends here and is freed before the next one is made.
        weights = [weight.detach().requires_grad_() for weight in saved]
        d_scores = torch.zeros_like(scores)
        d_biases = torch.zeros_like(biases)
        d_weights = [torch.zeros_like(weight) for weight in saved]
        for chunk in _chunks(scores):
            start, stop, keys = chunk
            pairs = _pairs(scores, biases, chunk).requires_grad_()  # (2H, n)
            d_mixed = d_output[:, :, start:stop, :keys].transpose(0, 1).flatten(1)  # (H, n)
            # Autocast is off as in the forward pass; the caller of a backward pass may have it on.
            with torch.enable_grad(), torch.autocast(scores.device.type, enabled=False):
                mixed = _network(pairs, *weights)
                d_pairs, *d_chunk_weights = torch.autograd.grad(mixed, (pairs, *weights), d_mixed)
            for d_weight, d_chunk_weight in zip(d_weights, d_chunk_weights, strict=True):
                d_weight += d_chunk_weight
            d_chunk = d_pairs.view(2, sizes.heads, sizes.batch, stop - start, keys)
            d_chunk_scores, d_chunk_biases = d_chunk  # (H, B, rows, keys) each
            d_scores[:, :, start:stop, :keys] = d_chunk_scores.transpose(0, 1)
            d_biases[:, start:stop, :keys] = d_chunk_biases.sum(1)  # over the batch
        return d_scores, d_biases, *d_weights
