"""A learned table's gradient by each way there is: one attention in bf16, forward and backward."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor, nn

from gpu_checks.common import REPEATS, WARM_UP, seconds, tell
from posenc.encodings.base import Encoding, Shape
from posenc.model import flex, flex_table
from posenc.model.decoder import ModelShape

TOKENS = 32768
LENGTHS = (256, 1024, 4096)
# TABLE_GRADIENT, side of a tile, warps; "frozen" is a table without a gradient
WAYS = (("frozen", 64, 4), ("captured", 64, 4), ("tiles", 64, 4), ("tiles", 128, 8), ("blocks", 64, 4))
APART = 1e-2  # gradients of two ways, relative


class Table(Encoding):
    """A table that is learned as it is."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.table = nn.Parameter(torch.zeros(shape.n_heads, shape.train_length))

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return self.table[:, : len(r)]


def time_ways(shapes: Sequence[ModelShape], device: torch.device) -> None:
    """Median ms by shape, length and way, and how far its gradient is from the first way's."""
    for shape in shapes:
        for length in LENGTHS:
            _time_ways(shape, length, device)


def _time_ways(shape: ModelShape, length: int, device: torch.device) -> None:
    from posenc.model import flex_kernel  # needs Triton

    heads, width = shape.n_heads, shape.head_dim
    e = Table(Shape(shape.d_model, heads, width, 1, length)).to(device)
    pos = torch.arange(length, device=device)
    size = (4, TOKENS // length, heads, length, width)
    *qkv, dout = torch.randn(size, device=device, dtype=torch.bfloat16).unbind(0)
    leaves = [one.clone().requires_grad_() for one in qkv]

    def attention() -> None:
        e.table.grad = None
        flex.attend_flex(*leaves, pos, e, 0, width**-0.5).backward(dout)

    first: Tensor | None = None
    for way, side, warps in WAYS:
        e.table.requires_grad_(way != "frozen")
        with (
            patch.object(flex, "TABLE_GRADIENT", "captured" if way == "captured" else "tiles"),
            patch.object(
                flex_table, "in_tiles", flex_table.in_blocks if way == "blocks" else flex_table.in_tiles
            ),
            patch.multiple(flex_kernel, SIDE=side, WARPS=warps, SHARED=4 * side * 4 * width * 2),
        ):
            case = {"model": shape.name, "T": length, "way": way, "side": side}
            try:
                compiled = seconds(attention, device)
                taken = [seconds(attention, device) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
            except Exception as failure:  # such as too little shared memory: the other ways go on
                tell("table", way != "tiles" or side == 64, **case, failure=repr(failure)[:500])
                continue
        off, grad = 0.0, e.table.grad
        if grad is not None:
            first = grad.clone() if first is None else first
            off = float((grad - first).norm() / first.norm())
        tell("table", not off < APART, **case, ms=1e3 * statistics.median(taken), first_s=compiled, off=off)
