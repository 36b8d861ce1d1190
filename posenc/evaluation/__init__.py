"""Protocols: how the loss of a trained model at longer windows is measured, one protocol a file.

Lengths are whole numbers of tokens, or multiples of the training length such as `4x`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from posenc.core.errors import UserError

# Protocol -> its module in this package, which has NAME, plan(request) and measure(context, plan, window);
# optional: UNIT (or `unit` in its plan), windows_of(request).
PROTOCOLS = {
    "fixed-target": "fixed_target",
    "sliding": "sliding",
    "nonoverlapping": "nonoverlapping",
    "positions": "positions",
    "induction": "induction",
    "far-copy": "far_copy",
    "recall": "recall",
    "key-tokens": "key_tokens",
}
ALLOWED = "positive whole numbers of tokens, or multiples of context_length such as 0.5x, 1x, 8x"


def resolve_lengths(lengths: Iterable[Any], context_length: int) -> list[int]:
    """Resolve `[0.5x, 1x, 512]` to window lengths in tokens, ascending, each once."""
    windows = {resolve_length("eval.lengths", length, context_length) for length in lengths}
    if not windows:
        raise UserError("eval.lengths", "[]", "no length to evaluate at", allowed=ALLOWED)
    return sorted(windows)


def resolve_length(key: str, length: Any, context_length: int) -> int:
    """Resolve one length to tokens. Raises UserError that names `key`."""
    if isinstance(length, float) and length.is_integer():  # 1e6
        length = int(length)
    if isinstance(length, int) and not isinstance(length, bool):
        tokens = Fraction(length)
    elif isinstance(length, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)(x?)", length.strip())):
        tokens = Fraction(match[1]) * (context_length if match[2] else 1)
    else:
        raise UserError(key, length, "not a length", allowed=ALLOWED)
    if tokens.denominator != 1 or tokens < 1:
        found = f"{float(tokens):g} tokens at context_length={context_length}"
        raise UserError(key, length, f"is {found}, not a positive whole number", allowed=ALLOWED)
    return int(tokens)
