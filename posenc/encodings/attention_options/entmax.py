"""Entmax with alpha = 1.5: a normaliser that gives keys with low scores a weight of exactly zero.

Formula: the weights are p_ij = max(z_ij / 2 - t_i, 0)^2.
  z_ij  the scaled and biased scores
  t_i   the number with which the weights of query i sum to 1
With r_ij = sqrt(p_ij) and the gradient g of p, the gradient of z_ij is
  r_ij (g_ij - sum over k of r_ik g_ik / sum over k of r_ik)
Setting: `attention.normalizer=entmax`.
Paper: Peters, Niculae, Martins 2019, arXiv 1905.05702; in attention: Correia, Niculae, Martins 2019, arXiv
1909.00015.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.encodings.attention_options.base import Normalizer
from posenc.encodings.base import StepCost

# Weights sum to 1 where the norm of their square roots is 1. The search ends where the norm exceeds 1 by less
# than this. The sum of the weights, its square, then exceeds 1 by less than twice as much.
LARGEST_EXCESS = 1e-6


def entmax15(z: Tensor) -> Tensor:
    """Return 1.5-entmax of scores z over the last dimension, differentiable. A score of -inf gets weight 0.

    At least one score of each row must be finite. A query always sees its own key, so it has one.
    """
    weights: Tensor = _Entmax15.apply(z)
    return weights


def threshold(half: Tensor) -> Tensor:
    """Return t such that sum of max(half - t, 0)^2 = 1 over the last dimension: half (..., n) -> (..., 1).

    The largest number of each row must be 0.

    This is Newton's method on f(t) = norm(max(half - t, 0)) - 1, which is convex and decreasing. It starts at
    t = -1, where f >= 0. So t increases and never passes the root.

    How many steps it needs: a Newton step on such an f has f_new / f + f'_new / f' <= 1, so the product
    f |f'| falls to a quarter or less. The product begins at n or below, and |f'| >= 1 always. So after
    log4(n / LARGEST_EXCESS) steps f is at most LARGEST_EXCESS. Rows of normal numbers need five to seven.
    """
    # A fixed limit, so that a row with nan does not search for ever.
    most_steps = math.ceil(math.log(half.shape[-1] / LARGEST_EXCESS, 4))
    # The largest number is 0, so at t = -1 it alone has the weight 1, and the root is not below.
    t = torch.full_like(half[..., :1], -1.0)
    is_settled = torch.zeros_like(t, dtype=torch.bool)
    for _ in range(most_steps):
        root = (half - t).relu_()
        total = root.sum(-1, keepdim=True)  # never 0: it is at least the norm, which is about 1 or above
        norm = torch.linalg.vector_norm(root, dim=-1, keepdim=True)
        # A settled row stays as it is. Otherwise its number of steps would depend on other rows, also later
        # ones, and a query would not be causal to the last bit.
        t = torch.where(is_settled, t, t + (norm - 1) * norm / total)  # slope of f: -total / norm
        is_settled |= norm - 1 < LARGEST_EXCESS
        # To ask whether all rows are settled is to wait for a GPU in every step, so no CUDA graph can hold
        # this. Compiled code cannot branch on numbers: it makes all steps.
        if not torch.compiler.is_compiling() and is_settled.all():
            break
    return t


class _Entmax15(torch.autograd.Function):
    """Compute the weights, and keep their square roots for the gradient, whose formula is at the top."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        # A shift of all scores of a row changes no weight. So the largest score is shifted to 0, since the
        # threshold would be rounded coarsely near a large number.
        half = (z - z.amax(-1, keepdim=True)) / 2
        root = (half - threshold(half)).relu_()
        # The root alone: the weights are its square, and the gradient needs nothing else.
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        d_z = grad * root
        weighted_mean = d_z.sum(-1, keepdim=True) / root.sum(-1, keepdim=True)  # of grad, by the roots
        return d_z.addcmul_(root, weighted_mean, value=-1.0)  # root * (grad - weighted_mean)


class Entmax(Normalizer):
    """Take 1.5-entmax in place of the softmax."""

    name = "entmax"
    key = "normalizer"
    choice = "entmax"
    cost = StepCost(at_64=1.56, at_512=2.81)  # step time of rope over that without it, T = 64 and 512

    def learned_parameters(self) -> int:
        return 0

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        # -inf stays -inf when a row is shifted, so a hidden key gets a weight of exactly 0.
        return entmax15(s.masked_fill(~allowed, float("-inf")))  # (B, H, T, S)
