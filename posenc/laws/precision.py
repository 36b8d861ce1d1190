"""Laws of precision: float32 against float64, bf16 against float32."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.laws.float64 import Float64
from posenc.laws.subject import FAR, LONGEST, Subject, logits, tokens
from posenc.laws.verdict import NotApplicableError, Verdict, bounded, largest, require, within
from posenc.model.decoder import Decoder

# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles in float32 are off by 2e-4, tables
# in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square over T tokens, logits of variance 1: 0.005 to 0.008 with two layers, at most 0.017 with
# four. A sum kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
GROWTH = 1.5  # of the error with the length


def float32(subject: Subject) -> Verdict:
    """Float32 is as good as float64 at positions to 65 536."""
    model = subject.fresh()
    pos = subject.far_positions(model)
    ids = tokens(model, len(pos))
    rounded = logits(model, ids, pos)
    with Float64():
        wide = subject.anywhere(subject.fresh())
        with torch.no_grad():
            for wide_parameter, parameter in zip(wide.parameters(), model.parameters(), strict=True):
                wide_parameter.copy_(parameter)
        exact = logits(wide, ids, pos)
    reason = f"float32 differs from float64 at positions to {FAR - 1}"
    off = within(largest(rounded.double(), exact), FLOAT32, reason)
    return Verdict("pass", bounded(off, FLOAT32))


def bf16(subject: Subject) -> Verdict:
    """Bf16 and fp32 are finite and agree, alike at every length to 8T, and at positions to 65 536.

    The last T tokens of every length are compared, where errors add up. Up to 256 tokens every position is
    exact in bf16; that later ones are not shows far out.
    """
    model = subject.fresh()
    length = subject.train_length
    windows = subject.windows(length * times for times in (1, 2, 4, LONGEST))
    off = [_bf16_off(model, tokens(model, n), None, length, f"at {n} tokens") for n in windows]
    growth = max(off) / off[0]
    require(max(off) < GROWTH * off[0], f"bf16 is {growth:.1f} times as far off at longer windows")
    refused = ""
    try:
        pos = subject.far_positions(model)
        ids = tokens(model, len(pos))
        off.append(_bf16_off(model, ids, pos, length, f"at positions to {FAR - 1}"))
    except NotApplicableError as error:
        refused = str(error)
    return Verdict("pass", bounded(max(off), BF16), refused)


def _bf16_off(model: Decoder, ids: Tensor, pos: Tensor | None, last: int, condition: str) -> float:
    """Return the difference of bf16 and float32 over the last tokens of a window."""
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos)
    dtypes = exact.dtype, rounded.dtype
    is_right = dtypes == (torch.float32, torch.bfloat16)
    require(is_right, f"logits are {dtypes} in float32 and bf16 {condition}")
    off = (rounded.float() - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    return within(off[-last:].mean().item(), BF16, f"bf16 and float32 differ {condition}")
