"""Laws of numbers: finite, of the right type, and not spoilt by float32 or bf16."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.laws.float64 import Float64
from posenc.laws.subject import FAR, LONGEST, Subject, largest, logits, tokens
from posenc.laws.verdict import NotApplicableError, Verdict, ViolationError, require, within
from posenc.model.decoder import Decoder

# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles made in float32 are off by 2e-4
# there, tables in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square of logits of variance 1 over T tokens: 0.005 to 0.008 at two layers, 0.017 at the most with
# four; 0.04 at single tokens. A sum that is kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
BF16_TOKEN = 0.1
FADES = 1.5


def finite(subject: Subject) -> Verdict:
    """At the longest window, and at positions near FAR."""
    n = subject.longest()
    model = subject.fresh()
    _is_finite(logits(model, tokens(model, n)), torch.float32, f"{n} tokens")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _is_finite(logits(model, tokens(model, n)), torch.bfloat16, f"{n} tokens")
    try:
        model = subject.anywhere(model)
        pos = far_positions(model, subject.train_length)
    except NotApplicableError as error:
        return Verdict("pass", f"{n} tokens", str(error))
    _is_finite(logits(model, tokens(model, len(pos)), pos), torch.float32, f"positions to {FAR - 1}")
    return Verdict("pass", f"{n} tokens, positions to {FAR - 1}")


def diverged(subject: Subject) -> Verdict:
    """With weights that are nan, as after a step too far, and with scores that overflow.

    A training is told as diverged by its loss; an index made of nan raises instead, or kills a GPU's context.
    """
    for spoilt, factor in (("nan", torch.nan), ("too large", 1e30)):
        model = subject.fresh()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter is not model.embedding.weight:  # a norm follows, and makes zeros of its overflow
                    parameter.mul_(factor)
        ids = tokens(model, subject.train_length)
        for dtype in (torch.float32, torch.bfloat16):
            try:
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    made = logits(model, ids)
            except Exception as error:  # the encoding's: whatever it raises
                text = f"{type(error).__name__}: {error}"
                raise ViolationError(f"weights that are {spoilt} raise {text} ({dtype})") from error
            if math.isnan(factor):
                require(not made.isfinite().any(), f"weights that are {spoilt} give finite logits ({dtype})")
    return Verdict("pass", f"{subject.train_length} tokens")


def float32(subject: Subject) -> Verdict:
    """Against the same code and parameters with everything in float64."""
    model = subject.anywhere(subject.fresh())
    pos = far_positions(model, subject.train_length)
    ids = tokens(model, len(pos))
    rounded = logits(model, ids, pos)
    with Float64():
        wide = subject.anywhere(subject.fresh())
        with torch.no_grad():
            for to, of in zip(wide.parameters(), model.parameters(), strict=True):
                to.copy_(of)
        exact = logits(wide, ids, pos)
    off = largest(rounded.double(), exact)
    return Verdict("pass", within(off, FLOAT32, f"float32 differs from float64 at positions to {FAR - 1}"))


def bf16(subject: Subject) -> Verdict:
    """At the last T tokens of every length, where what fades in bf16 would grow, and at positions to FAR.

    In windows of 256 tokens every position is exact in bf16; that there are more shows far out.
    """
    model, length = subject.fresh(), subject.train_length
    off = [
        _bf16_off(model, n, None, length, f"at {n} tokens")
        for n in subject.windows(length * times for times in (1, 2, 4, LONGEST))
    ]
    figure = within(max(off), BF16, "")
    require(max(off) < FADES * off[0], f"bf16 is {max(off) / off[0]:.1f} times as far off at longer windows")
    try:
        model = subject.anywhere(model)
        pos = far_positions(model, length)
    except NotApplicableError as error:
        return Verdict("pass", figure, str(error))
    far = _bf16_off(model, len(pos), pos, length, f"at positions to {FAR - 1}")
    return Verdict("pass", within(max(*off, far), BF16, ""))


def far_positions(model: Decoder, length: int) -> Tensor:
    """T positions from zero on and T below FAR in one window; 2T below FAR where that is refused. (2T,) int64

    Raises NotApplicableError where both are.
    """
    near = torch.arange(length)
    both, alone = torch.cat((near, FAR - length + near)), torch.arange(FAR - 2 * length, FAR)
    reason = ""
    for pos in (both, alone):
        try:
            logits(model, tokens(model, len(pos)), pos)
        except ValueError as error:
            reason = f"refuses far positions: {error}"
        else:
            return pos
    raise NotApplicableError(reason)


def _bf16_off(model: Decoder, n: int, pos: Tensor | None, last: int, where: str) -> float:
    """How far bf16 and float32 are apart over the last tokens of a window of n."""
    ids = tokens(model, n)
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos).float()
    off = (rounded - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    mean = off[-last:].mean().item()
    within(mean, BF16, f"bf16 and float32 differ {where}")
    within(off.max().item(), BF16_TOKEN, f"bf16 and float32 differ at a token {where}")
    return mean


def _is_finite(x: Tensor, dtype: torch.dtype, where: str) -> None:
    require(x.dtype == dtype, f"logits are {x.dtype} and not {dtype} at {where}")
    require(bool(x.isfinite().all()), f"logits are not finite at {where} ({dtype})")
