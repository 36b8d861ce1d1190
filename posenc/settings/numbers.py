"""Check numbers and texts as YAML and the command line pass them.

YAML reads `4e6` as a float, so a whole number may arrive as 4000000.0. It reads `true` as a boolean, which
Python would take for 1. The types here accept the first and refuse the second.
"""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, Strict
from pydantic_core import PydanticCustomError

from posenc.core.errors import UserError, suggestion
from posenc.core.paths import absolute_path

LARGEST_WHOLE = 2**63 - 1  # the largest number that files, seeds and tensors can hold
WITH_UNIT = re.compile(r"(\d+(?:\.\d+)?)([kmbg])", re.I)  # 32M, as posenc prints numbers of tokens
EXPONENTS = {"k": "e3", "m": "e6", "b": "e9", "g": "e9"}


def _as_whole(value: Any) -> Any:
    """Return 6e6 as 6000000. Raises PydanticCustomError for anything but a whole number."""
    # To Python True is the number 1, and `seed=true` would be a seed.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("wrong_type", "wrong type")
    if isinstance(value, float) and not value.is_integer():  # nan and infinity are none either
        raise PydanticCustomError("wrong_type", "not a whole number")
    number = int(value)
    if abs(number) > LARGEST_WHOLE:
        raise PydanticCustomError("too_large", "too large")
    return number


def _as_number(value: Any) -> Any:
    """Return 3 as 3.0. Raises PydanticCustomError for booleans, text, nan and infinity."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)  # NumPy's numbers are real ones, too
    if not is_number:
        raise PydanticCustomError("wrong_type", "wrong type")
    if abs(value) > LARGEST_WHOLE and isinstance(value, int):  # perhaps too large for a float
        raise PydanticCustomError("too_large", "too large")
    if not math.isfinite(value):
        raise PydanticCustomError("out_of_range", "out of range")
    return float(value)


def _as_text(value: Any) -> Any:
    """Return a text. A number or boolean, such as that of `name=7`, is meant as text."""
    if isinstance(value, bool):
        return str(value).lower()  # as it is written
    if isinstance(value, int):
        return str(value)
    return str(as_written(value)) if isinstance(value, float) else value


Whole = Annotated[int, BeforeValidator(_as_whole)]
Number = Annotated[float, BeforeValidator(_as_number)]
Text = Annotated[str, BeforeValidator(_as_text)]
AbsolutePath = Annotated[Text, AfterValidator(absolute_path)]  # a stored one means the same from any folder
Flag = Annotated[bool, Strict()]  # neither 1 nor "true"

CountingNumber = Annotated[Whole, Ge(1)]
NonNegative = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Share = Annotated[Number, Gt(0), Le(1)]  # a part of something, more than nothing


def check_whole(
    key: str, value: Any, *, least: int, most: int = LARGEST_WHOLE, too_small: str = "too small"
) -> int:
    """Return a whole number from `least` to `most`, which may be written 6e6. Raises UserError.

    `too_small` is the problem to report for a smaller number.
    """
    up_to = f" to {most}" if most < LARGEST_WHOLE else ""
    allowed = f"a whole number from {least}{up_to}"
    try:
        number: int = _as_whole(value)
    except PydanticCustomError as error:
        raise UserError(key, as_written(value), error.message(), allowed=allowed) from None
    if number < least:
        raise UserError(key, as_written(value), too_small, allowed=allowed)
    if number > most:
        raise UserError(key, as_written(value), "too large", allowed=allowed)
    return number


def check_between(
    key: str, value: Any, low: float, high: float = math.inf, *, above_low: bool = False
) -> float:
    """Return a number from `low` to `high`. With `above_low` it must exceed `low`. Raises UserError."""
    begin = "above" if above_low else "from"
    up_to = f" to {high:g}" if high < math.inf else ""
    allowed = f"a number {begin} {low:g}{up_to}"
    try:
        number: float = _as_number(value)
    except PydanticCustomError as error:
        raise UserError(key, as_written(value), error.message(), allowed=allowed) from None
    high_enough = low < number if above_low else low <= number
    if not high_enough or number > high:
        raise UserError(key, value, "out of range", allowed=allowed)
    return number


def as_written(value: Any) -> Any:
    """Return a number in digits, or a huge one such as 1e30 as the user wrote it; other values unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, int):
        return str(value) if abs(value) <= LARGEST_WHOLE else f"a number of {len(str(abs(value)))} digits"
    # From 1e16 on Python itself writes a float with an exponent.
    if abs(value) < 1e16:
        return f"{value:.0f}" if value.is_integer() else value
    return repr(float(value)).replace("e+", "e")  # without the name of NumPy's type


def hint_at_number(value: object) -> str:
    """Return `did you mean: 32e6` for `32M`, and nothing for values without such a unit."""
    match = WITH_UNIT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return ""
    digits, unit = match.groups()
    return suggestion(f"{digits}{EXPONENTS[unit.lower()]}")
