"""Lengths as users write them: tokens, or multiples of the training length such as `4x`.

`context_length` is the training length T of the model. `base_length` is the T that `4x` is a multiple of, and
for which targets are chosen. They differ only where models of several training lengths are to be scored on
the same targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

from posenc.core.errors import UserError
from posenc.settings.numbers import hint_at_number

LONGEST_DEFAULT = 8  # times T: the longest of the default lengths (conf/eval/default.yaml)
ALLOWED = "positive whole numbers of tokens, or multiples of T such as 0.5x, 1x, 8x"
# Neither a sign nor an exponent: `-1x` and `1e3x` are typing errors.
WRITTEN_LENGTH = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<multiple>x?)")


@dataclass(frozen=True)
class EvalLengths:
    """The windows that are measured and the training lengths behind them, all in tokens."""

    windows: tuple[int, ...]  # ascending
    context_length: int  # T of the model
    base_length: int  # the T that targets are chosen for

    @classmethod
    def of(cls, windows: Iterable[int], context_length: int, base_length: int | None = None) -> Self:
        """Sort the windows and drop repeated ones. Without a base_length it is the model's own T."""
        # `8x` and `512` may be one length, and a repeated window would make each of its records twice.
        return cls(tuple(sorted({*windows})), context_length, base_length or context_length)

    @property
    def shortest(self) -> int:
        """Return the shortest window."""
        return self.windows[0]

    @property
    def longest(self) -> int:
        """Return the longest window, which decides what text can be scored."""
        return self.windows[-1]

    @property
    def beyond_training(self) -> list[int]:
        """Return the windows that are longer than T."""
        return [window for window in self.windows if window > self.context_length]


def resolve_lengths(lengths: Iterable[Any], base_length: int) -> list[int]:
    """Resolve `[0.5x, 1x, 512]` to window lengths in tokens, ascending, each once. Raises UserError."""
    windows = {resolve_length("eval.lengths", length, base_length) for length in lengths}
    if not windows:
        raise UserError("eval.lengths", "[]", "no length to evaluate at", allowed=ALLOWED)
    return sorted(windows)


def resolve_length(key: str, length: Any, base_length: int) -> int:
    """Resolve one length to tokens. Raises UserError that names `key`."""
    tokens = _exact_tokens(key, length, base_length)
    if tokens.denominator != 1 or tokens < 1:
        problem = f"is {float(tokens):g} tokens at T = {base_length}, not a positive whole number"
        raise UserError(key, length, problem, allowed=ALLOWED)
    return int(tokens)


def nearest_length(key: str, length: Any, base_length: int) -> int:
    """Resolve one length to tokens; a multiple that is no whole number is rounded. Raises UserError."""
    # For lengths of which only the size matters, such as a distance of 1.75 T at T = 50.
    tokens = _exact_tokens(key, length, base_length)
    if tokens <= 0:
        raise UserError(key, length, "is no length", allowed=ALLOWED)
    return round(float(tokens))


def _exact_tokens(key: str, length: Any, base_length: int) -> Fraction:
    """Return a length in tokens as a fraction, so that no rounding makes 0.3x of 10 other than 3."""
    if isinstance(length, float) and length.is_integer():  # YAML reads 1e6 as a float
        return Fraction(int(length))
    # To Python a bool is an int, so without the second condition `true` would be one token.
    if isinstance(length, int) and not isinstance(length, bool):
        return Fraction(length)
    match = WRITTEN_LENGTH.fullmatch(length.strip()) if isinstance(length, str) else None
    if match is None:
        raise UserError(key, length, "not a length", allowed=ALLOWED, hint=hint_at_number(length))
    number = Fraction(match["number"])
    return number * base_length if match["multiple"] else number
