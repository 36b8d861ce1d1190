"""Scores that depend on the text: gates summed along it, and a network over the heads at every pair."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, float64
from posenc.encodings.families.rotary import rotate_pairs

# Pairs of tokens in a chunk of the network over heads. One CPU core is fastest from 8000 to 16 000.
PAIRS, PAIRS_GPU = 1 << 14, 1 << 22
LEAK = 0.01  # slope of the leaky ReLU below zero


def of_block(prepared: Tensor, window: int, s: Tensor) -> Tensor:
    """Select the rows of `prepared` (B, H, queries, ...) that belong to a block with scores s (B, H, T, S).

    `prepared` holds the last queries of a window of `window` tokens; s the last T of its first S.
    """
    queries, keys = s.shape[-2:]
    stop = prepared.shape[2] - window + keys
    return prepared[:, :, stop - queries : stop]  # (B, H, T, ...)


class CumulativeGates(Encoding):
    """score_ij - g_i * sum over l = j+1..i of f_l; a subclass computes f_l >= 0 and g_i from each token."""

    acts_on = "scores"
    relative = True
    uses_positions = False

    def steps(self, x: Tensor, layer: int) -> Tensor:
        """Return f_l >= 0 of every token and head: (B, S, d_model) -> (B, S, H)."""
        raise NotImplementedError

    def weight(self, x: Tensor, layer: int) -> Tensor | None:
        """Return g_i of every token and head: (B, S, d_model) -> (B, S, H); None means 1."""
        return None

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(next(self.parameters()).dtype)  # a bf16 product would round every step
            # float64: a float32 sum of 65 536 steps near 1 is off by thousandths
            passed = float64(self.steps(exact, layer)).cumsum(1).transpose(1, 2)  # (B, H, S)
            weight = self.weight(exact, layer)
            return passed, None if weight is None else weight.transpose(1, 2)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        passed, weight = state
        queries, keys = s.shape[-2:]
        # Sums start at the block's first query, so that float32 resolves the nearest tokens. Not at its last
        # query: a changed future token would then change how the past is rounded.
        start = keys - queries
        counted = (passed[..., :keys] - passed[..., start, None]).float().to(s.device)  # (B, H, S)
        difference = counted[..., None, :] - counted[..., start:, None]  # (B, H, T, S)
        if weight is None:
            return difference.add_(s)
        return torch.addcmul(s, weight[..., start:keys, None].float(), difference)


class PhaseSums(Encoding):
    """Rotate pairs (2k, 2k+1) of q and k by running sums over the text; a subclass computes the increments.

    The hook `rotate` sees no text, so the product of the rotated replaces the plain one among the scores.
    """

    acts_on = "scores"
    relative = True
    uses_positions = False

    def increments(self, x: Tensor, layer: int) -> Tensor:
        """Return what each token adds to its angles, (B, S, d_model) -> (B, H, S, D/2) float64."""
        raise NotImplementedError

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            phase = self.increments(x.to(next(self.parameters()).dtype), layer).cumsum(2)  # float64
            cos, sin = phase.cos().float().to(x.device), phase.sin().float().to(x.device)  # (B, H, S, D/2)
            start = cos.shape[2] - q.shape[2]
            q, k = q.float(), k.float()
            turned = rotate_pairs(q, cos[:, :, start:], sin[:, :, start:], "interleaved")
            return (
                torch.cat((turned, -q), dim=-1),  # (B, H, T, 2D)
                torch.cat((rotate_pairs(k, cos, sin, "interleaved"), k), dim=-1),  # (B, H, S, 2D)
            )

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        of_q, of_k = state
        keys = s.shape[-1]
        with torch.autocast(s.device.type, enabled=False):
            difference = of_block(of_q, of_k.shape[2], s) @ of_k[:, :, :keys].transpose(-1, -2)
        return s + difference * self.shape.head_dim**-0.5  # (B, H, T, S)


def reversed_cumsum(x: Tensor) -> Tensor:
    """Sum each entry and all later ones of the last dimension.

    Added from the end, so that a sum near the end is as exact as its few terms; total minus cumsum is not.
    """
    return x.flip(-1).cumsum(-1).flip(-1)


def over_heads(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 leaky_relu(w1 [z; b] + b1) + b2 for z (B, H, T, S), b (H, T, S) -> (B, H, T, S), future zero.

    w1 (K, 2H), b1 (K,), w2 (H, K), b2 (H,); the queries are the last T of the S keys' tokens. Hidden numbers
    of all pairs would be 130 MB a layer (K = 32, 512 tokens, batch 4): they are computed a chunk at a time,
    and again in the backward pass.
    """
    with torch.autocast(z.device.type, enabled=False):  # products of 2H numbers: casts would cost more
        out: Tensor = _OverHeads.apply(z, b, w1.float(), b1.float(), w2.float(), b2.float())
    return out


def _chunks(z: Tensor) -> Iterator[tuple[int, int, int]]:
    """Yield rows start..stop of a chunk, and the number of keys that its last row sees."""
    batch, _, queries, keys = z.shape
    most = PAIRS_GPU if z.is_cuda else PAIRS
    stop = queries
    while stop > 0:  # the last first: it sees the most keys, so the others reuse its memory
        rows = max(1, most // (batch * (keys - queries + stop)))
        start = max(0, stop - rows)
        yield start, stop, keys - queries + stop
        stop = start


def _pairs(z: Tensor, b: Tensor, start: int, stop: int, seen: int) -> Tensor:
    """Return [z; b] of a chunk: (2H, B * rows * seen)."""
    of_z = z[:, :, start:stop, :seen].transpose(0, 1)  # (H, B, rows, seen)
    of_b = b[:, None, start:stop, :seen].expand_as(of_z)
    return torch.cat((of_z, of_b)).flatten(1)


def _network(pairs: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Apply the network to every pair, (2H, n) -> (H, n)."""
    return torch.addmm(b2[:, None], w2, F.leaky_relu(torch.addmm(b1[:, None], w1, pairs), LEAK))


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
