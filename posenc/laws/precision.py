"""Laws of precision: float32 against float64, bf16 against float32."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.laws.float64 import Float64, RecordedDraws
from posenc.laws.subject import FAR, MULTIPLES, Subject, logits, tokens
from posenc.laws.verdict import (
    LawNotApplicableError,
    Verdict,
    largest_difference,
    require,
    require_below,
    with_bound,
)
from posenc.model.decoder import Decoder

# Bound on differences of logits, whose variance is 1. They agree to 6e-6, at widths of 32 to 256 alike.
# Angles in float32 are wrong by 2e-4, tables in bf16 by 4e-3.
FLOAT32_BOUND = 5e-5
# Bound on the root mean square of such differences over T tokens: 0.005 to 0.008 with two layers, at most
# 0.017 with four. A sum kept in bf16 is wrong by 0.15 at 8T.
BF16_BOUND = 0.03
# Float32 has 24 bits: at position 65 535 the product of a position and a frequency is off by up to 0.004
# radians. A distance, a bias or its logarithm keeps its relative error, which the bound allows.
FLOAT64_ANGLES = "angles, position times frequency, need float64: compute them so, then cast cos and sin"
MOST_GROWTH = 1.5  # the largest error at any length over the error at T


def float32(subject: Subject) -> Verdict:
    """Float32 is as good as float64 at positions to 65 536."""
    with RecordedDraws() as recorded:
        model = subject.fresh()
    pos = subject.far_positions(model)
    ids = tokens(model, len(pos))
    rounded = logits(model, ids, pos)
    with Float64():
        with recorded.replayed():
            wide = subject.accept_any_positions(subject.fresh())
        # Copied, since the model rounds them to float32, which is no fault of it.
        with torch.no_grad():
            for wide_parameter, parameter in zip(wide.parameters(), model.parameters(), strict=True):
                wide_parameter.copy_(parameter)
        exact = logits(wide, ids, pos)
    reason = f"float32 differs from float64 at positions to {FAR - 1}"
    # The largest and no mean: a single wrong position would vanish in a mean.
    error = largest_difference(rounded.double(), exact)
    require_below(error, FLOAT32_BOUND, reason, FLOAT64_ANGLES)
    return Verdict("pass", with_bound(error, FLOAT32_BOUND))


def bf16(subject: Subject) -> Verdict:
    """Bf16 and fp32 are finite and agree, alike at every length to 8T, and at positions to 65 536.

    The last T tokens of every length are compared, where errors add up. Up to 256 tokens every position is
    exact in bf16; later ones are not, which shows at far positions.
    """
    model = subject.fresh()
    length = subject.train_length
    windows = subject.windows(multiple * length for multiple in MULTIPLES)
    errors = [_bf16_error(model, tokens(model, n), None, length, f"at {n} tokens") for n in windows]
    largest = max(errors)
    # Against the error at T and no fixed number, since it depends on width and depth.
    growth = largest / errors[0]
    require(largest < MOST_GROWTH * errors[0], f"bf16 is {growth:.1f} times as far off at longer windows")
    refused = ""
    try:
        pos = subject.far_positions(model)
        ids = tokens(model, len(pos))
        errors.append(_bf16_error(model, ids, pos, length, f"at positions to {FAR - 1}"))
    except LawNotApplicableError as not_applicable:
        refused = str(not_applicable)
    return Verdict("pass", with_bound(max(errors), BF16_BOUND), refused)


def _bf16_error(model: Decoder, ids: Tensor, pos: Tensor | None, last: int, condition: str) -> float:
    """Return the difference of bf16 and float32 logits over the `last` tokens of a window.

    It is the mean over these tokens of the root mean square over texts and vocabulary.
    """
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos)
    dtypes = (exact.dtype, rounded.dtype)
    is_right = dtypes == (torch.float32, torch.bfloat16)
    require(is_right, f"logits are {dtypes} in float32 and bf16 {condition}")
    # A mean and not the largest, because bf16 rounds single logits by chance.
    error_by_token = (rounded.float() - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    error = error_by_token[-last:].mean().item()
    require_below(error, BF16_BOUND, f"bf16 and float32 differ {condition}")
    return error
