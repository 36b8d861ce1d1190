"""Compare each backward pass that is written out with the plain formula, by a training step of nano.

    python scripts/bench/backward_passes.py [NAME ...]

Both ways run in turns, seven pairs, at T = 64 and T = 512, in float32 and in bf16, on one thread. A line says
how many times as long the plain formula takes (the median of the pairs, the smallest and the largest), and
whether the loss and the gradients are the same bit for bit. Below 1.1 the plain formula should stand, unless
it changes the numbers of every run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.shared import head_network
from posenc.model import attention, decoder, kernels, loss
from posenc.model.decoder import Decoder, ModelShape, initialize
from posenc.model.norm import NORM_EPS
from posenc.model.softmax_attention import QueryBlock, Scoring

NANO = ModelShape("nano", d_model=128, n_layers=4, n_heads=4, mlp_ratio=4)
VOCABULARY = 260  # bytes
TOKENS = 2048  # of a step
PAIRS = 7
STEPS = 3  # of each way in a pair; the fastest counts
LENGTHS = (64, 512)
PRECISIONS = ("fp32", "bf16")


# --- the plain formulas


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def plain_norm_for_product(x: Tensor, weight: Tensor) -> Tensor:
    normed = plain_norm(x.to(weight.dtype), weight)
    if torch.is_autocast_enabled("cpu"):
        return normed.to(torch.get_autocast_dtype("cpu"))
    return normed


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[QueryBlock], scoring: Scoring
) -> Tensor:
    q, k = q.to(v.dtype), k.to(v.dtype).expand(-1, q.shape[1], -1, -1)
    outputs: list[Tensor] = []
    for block in sorted(blocks):
        bias = scoring.bias_of(block)
        product = q[:, :, block.start : block.stop] @ k[:, :, : block.keys].transpose(-1, -2)
        p = torch.softmax(product.to(bias.dtype) * scoring.scale + bias, dim=-1).to(v.dtype)
        outputs.append(p @ v[:, :, : block.keys])
    return torch.cat(outputs, dim=2)


def plain_head_network(z: Tensor, b: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        pairs = torch.cat((z, b.expand_as(z)), dim=1).movedim(1, -1)  # (B, T, S, 2H)
        hidden = F.leaky_relu(F.linear(pairs, w1.float(), b1.float()), head_network.LEAK)
        return F.linear(hidden, w2.float(), b2.float()).movedim(-1, 1)  # (B, H, T, S)


@dataclass(frozen=True)
class Comparison:
    """A hand-written backward pass: an encoding that uses it, and what replaces it where."""

    encoding: str
    replacements: tuple[tuple[Any, str, Callable[..., Any]], ...]


def comparisons() -> dict[str, Comparison]:
    from posenc.encodings import dape

    norms = (
        (decoder, "rms_norm", plain_norm),
        (decoder, "rms_norm_for_product", plain_norm_for_product),
        (attention, "rms_norm_for_product", plain_norm_for_product),
    )
    attend = ((kernels, "softmax_attention", plain_attention),)
    return {
        "norm": Comparison("rope", norms),
        "loss": Comparison("rope", ((loss, "next_token_loss", plain_loss),)),
        "attention, a mask": Comparison("rope", attend),
        "attention, a fixed bias": Comparison("alibi", attend),
        "attention, a learned bias": Comparison("t5", attend),
        "head network": Comparison("dape", ((dape, "head_network", plain_head_network),)),
    }


# --- a training step, timed


def model_of(encoding: str, length: int) -> Decoder:
    """Build nano with its initial values."""
    sizes = {"d_model": NANO.d_model, "n_heads": NANO.n_heads, "head_dim": NANO.head_dim}
    built = build_encoding(encoding, **sizes, n_layers=NANO.n_layers, train_length=length)
    model = Decoder(NANO, VOCABULARY, built)
    initialize(model, 0)
    return model.train()


def step(model: Decoder, ids: Tensor, precision: str) -> tuple[float, list[Tensor]]:
    """Return the seconds of a forward and a backward pass, and the loss and every gradient."""
    model.zero_grad()
    began = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        hidden = model.hidden(ids[:, :-1], torch.arange(ids.shape[1] - 1))
        weight = model.embedding.weight.to(hidden.dtype)
    mean = loss.next_token_loss(hidden.flatten(0, 1), weight, ids[:, 1:].flatten())
    mean.backward()
    seconds = time.perf_counter() - began
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return seconds, [mean.detach(), *gradients]


def fastest(
    model: Decoder, ids: Tensor, precision: str, replacements: Sequence[Any] = ()
) -> tuple[float, Any]:
    """Return the seconds of the fastest of a few steps, and what the last one computed."""
    with ExitStack() as stack:
        for module, name, plain in replacements:
            stack.enter_context(patch.object(module, name, plain))
        timed = [step(model, ids, precision) for _ in range(STEPS)]
    return min(seconds for seconds, _ in timed), timed[-1][1]


def compare(name: str, comparison: Comparison, length: int, precision: str) -> None:
    """Time both ways in turns and print a line."""
    model = model_of(comparison.encoding, length)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (TOKENS // length, length + 1), generator=generator)
    fastest(model, ids, precision)  # warm-up
    ratios: list[float] = []
    for _ in range(PAIRS):
        by_hand, numbers = fastest(model, ids, precision)
        plain, plain_numbers = fastest(model, ids, precision, comparison.replacements)
        ratios.append(plain / by_hand)
    is_same = all(torch.equal(a, b) for a, b in zip(numbers, plain_numbers, strict=True))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    bits = "same bits" if is_same else "other bits"
    print(
        f"{name:<26} T={length:<4} {precision}  {statistics.median(ratios):.2f}  ({spread})  {bits}",
        flush=True,
    )


def main() -> None:
    """Run the comparisons that the command line names, or all."""
    torch.set_num_threads(1)
    chosen = sys.argv[1:]
    for name, comparison in comparisons().items():
        if chosen and name not in chosen:
            continue
        for length in LENGTHS:
            for precision in PRECISIONS:
                compare(name, comparison, length, precision)


if __name__ == "__main__":
    main()
