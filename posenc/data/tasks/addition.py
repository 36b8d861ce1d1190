"""addition: two numbers of n digits, then their sum of n + 1 digits.

    05+17>022.         plain
    50+71>220.         with `backwards`: the digit of ones comes first, as the carry needs it
    q5r0+q7r1>q2r2s0.  with `hints` too: the same symbol before the digits of one place

Hints are neighbours in a long alphabet, from a drawn first one on. So all of them are trained with short
numbers, and a model can find the digits of a place by their hint.

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

    backwards: Flag = True  # the digit of ones first
    hints: Flag = True  # a symbol for the place before each digit

    @property
    def largest(self) -> int | None:
        return len(MANY_SYMBOLS) - 1 if self.hints else None

    def tokens(self, size: int) -> int:
        tokens_a_digit = 2 if self.hints else 1
        return tokens_a_digit * (3 * size + 1) + len("+" + SEPARATOR + END)

    def instance(self, draws: Draws, size: int) -> Instance:
        first = draws.text(DIGITS, size)
        second = draws.text(DIGITS, size)
        total = f"{int(first) + int(second):0{size + 1}d}"
        symbols = ""  # from that of the ones on; the sum has one digit more than the numbers
        if self.hints:
            begin = draws.below(len(MANY_SYMBOLS) - size)
            symbols = MANY_SYMBOLS[begin : begin + size + 1]
        given = self.written(first, symbols) + "+" + self.written(second, symbols) + SEPARATOR
        return Instance((given, self.written(total, symbols) + END))

    def written(self, number: str, symbols: str) -> str:
        """Return a number as the task writes it, with `hints` behind one of the symbols for each digit."""
        ones_first = number[::-1]
        digits = list(ones_first)
        if self.hints:
            digits = [symbol + digit for symbol, digit in zip(symbols, ones_first, strict=False)]
        return "".join(digits if self.backwards else reversed(digits))
