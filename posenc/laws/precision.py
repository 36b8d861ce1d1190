"""Laws of precision: logits are finite, of the right type, and agree in float64, float32 and bf16."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc.laws.subject import (
    FAR,
    LONGEST,
    NotApplicableError,
    Subject,
    Verdict,
    ViolationError,
    largest,
    logits,
    require,
    tokens,
    within,
)
from posenc.model.decoder import Decoder

# Logits of variance 1 agree to 6e-6, at widths of 32 to 256 alike. Angles in float32 are off by 2e-4, tables
# in bf16 by 4e-3.
FLOAT32 = 5e-5
# Root mean square over T tokens, logits of variance 1: 0.005 to 0.008 with two layers, at most 0.017 with
# four; 0.04 at single tokens. A sum kept in bf16 is off by 0.15 at 8T.
BF16 = 0.03
BF16_TOKEN = 0.1
GROWTH = 1.5  # of the error with the length

NARROW = {torch.float32, torch.float16, torch.bfloat16}
CASTS: set[Any] = {Tensor.float, Tensor.half, Tensor.bfloat16}
# Random draws differ between float32 and float64: drawn in float32 and widened, they are the same numbers.
DRAWS: set[Any] = {torch.rand, torch.randn}
DRAWS_IN_PLACE: set[Any] = {Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.log_normal_}


def finite(subject: Subject) -> Verdict:
    """Check the longest window, and positions near FAR."""
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


def _is_finite(x: Tensor, dtype: torch.dtype, where: str) -> None:
    require(x.dtype == dtype, f"logits are {x.dtype} and not {dtype} at {where}")
    require(bool(x.isfinite().all()), f"logits are not finite at {where} ({dtype})")


def diverged(subject: Subject) -> Verdict:
    """Run with weights that are nan, as after a diverging step, and with scores that overflow.

    A diverged training is seen by its loss; an index made of nan raises instead, or kills a GPU's context.
    """
    for spoilt, factor in (("nan", torch.nan), ("too large", 1e30)):
        model = subject.fresh()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter is not model.embedding.weight:  # the norm after it makes its overflow zero
                    parameter.mul_(factor)
        ids = tokens(model, subject.train_length)
        for dtype in (torch.float32, torch.bfloat16):
            try:
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                    made = logits(model, ids)
            except Exception as error:  # an encoding may raise anything
                text = f"{type(error).__name__}: {error}"
                raise ViolationError(f"weights that are {spoilt} raise {text} ({dtype})") from error
            if math.isnan(factor):
                require(not made.isfinite().any(), f"weights that are {spoilt} give finite logits ({dtype})")
    return Verdict("pass", f"{subject.train_length} tokens")


def float32(subject: Subject) -> Verdict:
    """Compare with the same code and parameters with everything in float64."""
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
    """Compare the last T tokens of every length, where errors add up, and positions to FAR.

    Up to 256 tokens every position is exact in bf16; that later ones are not shows far out.
    """
    model, length = subject.fresh(), subject.train_length
    off = [
        _bf16_off(model, n, None, length, f"at {n} tokens")
        for n in subject.windows(length * times for times in (1, 2, 4, LONGEST))
    ]
    figure = within(max(off), BF16, "")
    require(max(off) < GROWTH * off[0], f"bf16 is {max(off) / off[0]:.1f} times as far off at longer windows")
    try:
        model = subject.anywhere(model)
        pos = far_positions(model, length)
    except NotApplicableError as error:
        return Verdict("pass", figure, str(error))
    far = _bf16_off(model, len(pos), pos, length, f"at positions to {FAR - 1}")
    return Verdict("pass", within(max(*off, far), BF16, ""))


def _bf16_off(model: Decoder, n: int, pos: Tensor | None, last: int, where: str) -> float:
    """Return the difference of bf16 and float32 over the last tokens of a window of n."""
    ids = tokens(model, n)
    exact = logits(model, ids, pos)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = logits(model, ids, pos).float()
    off = (rounded - exact).square().mean(dim=(0, 2)).sqrt()  # (n,)
    mean = off[-last:].mean().item()
    within(mean, BF16, f"bf16 and float32 differ {where}")
    within(off.max().item(), BF16_TOKEN, f"bf16 and float32 differ at a token {where}")
    return mean


def far_positions(model: Decoder, length: int) -> Tensor:
    """Return T positions from zero on and T below FAR; 2T below FAR where that is refused. (2T,) int64

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


class Float64(TorchFunctionMode):
    """Inside, torch uses float64 wherever float32 or less, or no type, is asked for.

    Make a model inside and run it there: its buffers and constants are made anew.
    """

    def __enter__(self) -> Float64:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        entered: Float64 = super().__enter__()
        return entered

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        torch.set_default_dtype(self._before)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWS:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        if func in DRAWS_IN_PLACE:
            drawn = torch.empty(args[0].shape, dtype=torch.float32)
            return args[0].copy_(func(drawn, *args[1:], **kwargs))
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in kwargs.items()})


def _widened(value: Any) -> Any:
    # the type first: `in` would compare a tensor
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value
