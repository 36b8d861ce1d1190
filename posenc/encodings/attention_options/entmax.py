"""Entmax with alpha = 1.5: a normaliser that gives far and unfit keys a weight of exactly zero.

Formula: p_ij = max(z_ij / 2 - t_i, 0)^2, z the scaled and biased scores, and t_i such that the weights of a
query sum to 1. Its gradient is d z_ij = r_ij (g_ij - sum_k r_ik g_ik / sum_k r_ik), r_ij = sqrt(p_ij), g the
gradient of p.
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

LARGEST_EXCESS = 1e-6  # of the norm of a row's roots above 1, which is half of the excess of its weights


def entmax15(z: Tensor) -> Tensor:
    """Return 1.5-entmax over the last dimension, with its gradient; -inf has no weight."""
    weights: Tensor = _Entmax15.apply(z)
    return weights


def threshold(half: Tensor) -> Tensor:
    """Return t with sum of max(half - t, 0)^2 = 1 over the last dimension, which it keeps with size 1.

    The largest number of each row must be 0. By Newton's method for the norm of max(half - t, 0), a convex
    function of t, from below, where the norm is above 1: so t only grows, and never passes the solution.

    A convex function's excess and slope both fall in such a step, and what remains of the two, as shares,
    sums to 1 at most. So their product falls to a quarter or less. Of n numbers it is n at first, and the
    slope is never below 1. Rows of normal numbers need five to seven steps.
    """
    most_steps = math.ceil(math.log(half.shape[-1] / LARGEST_EXCESS, 4))
    t = torch.full_like(half[..., :1], -1.0)
    is_settled = torch.zeros_like(t, dtype=torch.bool)
    for _ in range(most_steps):
        root = (half - t).relu_()
        total = root.sum(-1, keepdim=True)  # at least 1 until t has passed the solution
        norm = torch.linalg.vector_norm(root, dim=-1, keepdim=True)
        # A settled row stays as it is. Otherwise rows that take longer, those of future tokens among them,
        # would change how it is rounded.
        t = torch.where(is_settled, t, t + (norm - 1) * norm / total)
        is_settled |= norm - 1 < LARGEST_EXCESS
        # a compiled graph cannot stop early, since it has no branch that depends on numbers
        if not torch.compiler.is_compiling() and is_settled.all():
            break
    return t


class _Entmax15(torch.autograd.Function):
    """Compute the weights, and their gradient from the weights alone."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        # Weights do not change when all scores shift alike, but the threshold near a large number is coarse.
        half = (z - z.amax(-1, keepdim=True)) / 2
        root = (half - threshold(half)).relu_()
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        d_z = grad * root
        mean = d_z.sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
        return d_z.addcmul_(root, mean, value=-1.0)


class Entmax(Normalizer):
    """1.5-entmax in place of the softmax: exact zeros."""

    name = "entmax"
    key = "normalizer"
    choice = "entmax"
    cost = StepCost(at_64=1.56, at_512=2.81)

    def learned_parameters(self) -> int:
        return 0

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        return entmax15(s.masked_fill(~allowed, float("-inf")))  # (B, H, T, S)
