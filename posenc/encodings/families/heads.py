"""A network over the heads at every pair of a query and a key it sees, in chunks.

Hidden numbers for every pair: with 32 of them 130 MB a layer at 512 tokens and a batch of four. They are made
a chunk at a time, small enough for a cache, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Pairs in a chunk. On one core a step's products are fastest from 8000 to 16 000 pairs; a GPU wants many.
PAIRS, PAIRS_GPU = 1 << 14, 1 << 22
SLOPE = 0.01  # of a leaky ReLU below zero


def over_heads(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """w2 leaky_relu(w1 [z; b] + b1) + b2 for z (B, H, T, S) and b (H, T, S) -> (B, H, T, S), the future zero.

    w1 (K, 2H), b1 (K,), w2 (H, K), b2 (H,); the queries are the last T of the S keys' tokens.
    """
    with torch.autocast(z.device.type, enabled=False):  # products of 2H numbers: casts would cost more
        out: Tensor = _OverHeads.apply(z, b, w1.float(), b1.float(), w2.float(), b2.float())
    return out


def _chunks(z: Tensor) -> Iterator[tuple[int, int, int]]:
    """Rows start..stop of a chunk, and the keys that its last one sees."""
    batch, _, queries, keys = z.shape
    most = PAIRS_GPU if z.is_cuda else PAIRS
    stop = queries
    while stop > 0:  # the last first: it sees the most keys, so its memory serves all others
        rows = max(1, most // (batch * (keys - queries + stop)))
        start = max(0, stop - rows)
        yield start, stop, keys - queries + stop
        stop = start


def _pairs(z: Tensor, b: Tensor, start: int, stop: int, seen: int) -> Tensor:
    """[z; b] of a chunk: (2H, B * rows * seen)."""
    of_z = z[:, :, start:stop, :seen].transpose(0, 1)  # (H, B, rows, seen)
    of_b = b[:, None, start:stop, :seen].expand_as(of_z)
    return torch.cat((of_z, of_b)).flatten(1)


def _network(pairs: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """(2H, n) -> (H, n)."""
    return torch.addmm(b2[:, None], w2, F.leaky_relu(torch.addmm(b1[:, None], w1, pairs), SLOPE))


class _OverHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        z, b, *weights = given
        out = torch.zeros_like(z)
        for start, stop, seen in _chunks(z):
            mixed = _network(_pairs(z, b, start, stop, seen), *weights)  # (H, n)
            size = (z.shape[1], z.shape[0], stop - start, seen)
            out[:, :, start:stop, :seen] = mixed.view(size).transpose(0, 1)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        z, b, *given = ctx.saved_tensors
        to_z, to_b = torch.zeros_like(z), torch.zeros_like(b)
        weights = [one.detach().requires_grad_() for one in given]
        to_weights = [torch.zeros_like(one) for one in given]
        for start, stop, seen in _chunks(z):
            pairs = _pairs(z, b, start, stop, seen).requires_grad_()  # (2H, n)
            g = gradients[0][:, :, start:stop, :seen].transpose(0, 1).flatten(1)  # (H, n)
            # a caller may still be inside its autocast here
            with torch.enable_grad(), torch.autocast(z.device.type, enabled=False):
                found = torch.autograd.grad(_network(pairs, *weights), (pairs, *weights), g)
            for total, part in zip(to_weights, found[1:], strict=True):
                total += part
            of_pairs = found[0].view(2, z.shape[1], z.shape[0], stop - start, seen)
            to_z[:, :, start:stop, :seen] = of_pairs[0].transpose(0, 1)
            to_b[:, start:stop, :seen] = of_pairs[1].sum(1)
        return to_z, to_b, *to_weights
