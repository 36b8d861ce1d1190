"""addition: two numbers of n digits, then their sum of n + 1 digits.

    05+17>022.         plain
    50+71>220.         with `backwards`: the ones come first, as they do in adding with a carry
    q5r0+q7r1>q2r2s0.  with `hints` too: a symbol before each digit, the same for all ones, all tens, ...

A model can find the digits of one place by their hint. The hints of an instance are consecutive symbols of a
long alphabet. The first one is drawn, so that all symbols are trained even with short numbers.

Source: Zhou et al. 2023 (What Algorithms can Transformers Learn?), arXiv 2310.16028, for the hints; Zhou et
al. 2024 (Transformers Can Achieve Length Generalization But Not Robustly), arXiv 2402.09371.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import END, MANY_SYMBOLS, SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Flag

DIGITS = "0123456789"


@dataclass(frozen=True, kw_only=True)
class Addition(Task):
    """Ask for the sum of two numbers."""

    name: ClassVar[str] = "addition"
    about: ClassVar[str] = "two numbers -> their sum"
    source: ClassVar[str] = "arXiv 2310.16028, 2402.09371"

    backwards: Flag = True  # the ones come first
    hints: Flag = True  # before each digit a symbol for its place: ones, tens, ...

    @property
    def largest(self) -> int | None:
        # The sum has one digit more than the numbers, and each of its digits needs a symbol.
        return len(MANY_SYMBOLS) - 1 if self.hints else None

    def tokens(self, size: int) -> int:
        tokens_a_digit = 2 if self.hints else 1
        return tokens_a_digit * (3 * size + 1) + len("+" + SEPARATOR + END)

    def instance(self, draws: Draws, size: int) -> Instance:
        first = draws.text(DIGITS, size)
        second = draws.text(DIGITS, size)
        total = _sum(first, second)
        symbols = ""  # of the ones, the tens, ...: size + 1 of them, since the sum has one more digit
        if self.hints:
            # The last beginning that leaves size + 1 symbols is this number minus 1.
            begin = draws.below(len(MANY_SYMBOLS) - size)
            symbols = MANY_SYMBOLS[begin : begin + size + 1]
        question = self.written(first, symbols) + "+" + self.written(second, symbols) + SEPARATOR
        return Instance((question, self.written(total, symbols) + END))

    def written(self, number: str, symbols: str) -> str:
        """Return a number as the task writes it. With `hints` each digit follows the symbol of its place."""
        ones_first = number[::-1]
        digits = list(ones_first)
        if self.hints:
            # Not strict: the sum has one digit, and so one symbol, more than the numbers.
            digits = [symbol + digit for symbol, digit in zip(symbols, ones_first, strict=False)]
        return "".join(digits if self.backwards else reversed(digits))


def _sum(first: str, second: str) -> str:
    """Return the sum of two numbers of n digits, with n + 1 digits.

    Digit by digit, since Python makes no number of more than 4300 digits.
    """
    digits: list[str] = []  # the ones first
    carry = 0
    for first_digit, second_digit in zip(reversed(first), reversed(second), strict=True):
        carry, digit = divmod(int(first_digit) + int(second_digit) + carry, 10)
        digits.append(str(digit))
    digits.append(str(carry))
    return "".join(reversed(digits))
