"""Define what a task is: a generator of instances by size, and the draws that it takes its numbers from.

A task is one file of this folder with one subclass of `Task`, found by walking the folder. Its fields are
the keys of `data.options`. A file of the user's own has the same shape: `data.task=./mine.py`.
"""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from annotated_types import Ge, Le

from posenc.core.seeds import more_draws, raw_draws
from posenc.settings.numbers import Whole

SEPARATOR = ">"  # between what is given and the answer
END = "."  # the last token of an answer whose length is not known beforehand
LETTERS = string.ascii_lowercase

# 146 characters that can be printed and are neither small letters, digits nor marks: for keys and hints. The
# soft hyphen (U+00AD) is left out, as terminals hide it.
LATIN = "".join(chr(code) for code in range(0xA1, 0x100) if code != 0xAD)
MANY_SYMBOLS = string.ascii_uppercase + LATIN + "!#$%&'()*,/:;<=?@[]^_`{|}~"
RAW_NUMBERS_A_ROW = 256  # drawn for each row at once: enough for instances of 250 tokens

# The option of many tasks: from how many letters, from `a` on, an instance is drawn.
LetterCount = Annotated[Whole, Ge(2), Le(len(LETTERS))]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Instance:
    """Hold one instance of a task, as text. A character is a token, from U+0002 to U+00FF.

    Pieces that are given and pieces of the answer take turns: ("abc>", "cba.") or ("a-b", "a", "c", "b").
    """

    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the whole instance."""
        return "".join(self.pieces)

    @property
    def given(self) -> str:
        """Return what is given, without the answer."""
        return "".join(self.pieces[::2])

    @property
    def answer(self) -> str:
        """Return the answer."""
        return "".join(self.pieces[1::2])


class Draws:
    """Draw what one instance needs, by a seed, a counter and a row: never by what was drawn before."""

    def __init__(self, raw_numbers: Sequence[int], seed: int, counter: int, row: int) -> None:
        """Take the first raw numbers; further ones follow from seed, counter and row."""
        self._unused = list(raw_numbers)[::-1]  # the next one is the last, since a list pops there fast
        self._key = (seed, counter, row)
        self._count = len(raw_numbers)  # so far, with those that are used

    def below(self, count: int) -> int:
        """Return a whole number from 0 to count - 1."""
        if not self._unused:
            # all from the start again, twice as many: few instances are that long
            raw = more_draws(2 * self._count, *self._key)[self._count :]
            self._unused = raw.tolist()[::-1]
            self._count += len(raw)
        return self._unused.pop() % count

    def choice(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[self.below(len(items))]

    def text(self, letters: str, length: int) -> str:
        """Return a text of letters, which may repeat."""
        return "".join([self.choice(letters) for _ in range(length)])

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """Return the items in random order (Fisher and Yates)."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order


def draws_of_rows(count: int, seed: int, counter: int) -> list[Draws]:
    """Return the draws of `count` instances, one a row. Those of a row do not depend on `count`."""
    raw = raw_draws(count * RAW_NUMBERS_A_ROW, seed, counter)
    rows = raw.reshape(count, RAW_NUMBERS_A_ROW).tolist()
    return [Draws(raw_numbers, seed, counter, row) for row, raw_numbers in enumerate(rows)]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Generate instances of any size. The fields of a task are its options, with a type and a default."""

    name: ClassVar[str]  # as in `data.task`; for posenc's own tasks also the name of the file
    about: ClassVar[str]  # what is asked, in a few words
    source: ClassVar[str]  # the papers that it comes from
    revision: ClassVar[int] = 1  # raised when other instances are drawn
    smallest: ClassVar[int] = 1  # size of the smallest instance

    @abstractmethod
    def tokens(self, size: int) -> int:
        """Return the most tokens that an instance of this size has."""

    @abstractmethod
    def instance(self, draws: Draws, size: int) -> Instance:
        """Return an instance of this size. It depends on the draws and the options alone."""

    @property
    def largest(self) -> int | None:
        """Return the largest size that can be drawn, where an alphabet ends; None without a limit."""
        return None
