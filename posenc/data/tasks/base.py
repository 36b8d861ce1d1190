"""The base class of tasks: generators of instances (a question and its answer) of any size.

A task is one file of this folder with one subclass of `Task`, found by walking the folder. Its fields are
the keys of `data.options`. A task of the user's own is a file of the same form: `data.task=./mine.py`.
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
END = "."  # the last token of an answer whose length the question does not tell
LETTERS = string.ascii_lowercase

# For keys and hints: the 146 printable characters of Latin-1, without small letters, digits and " + - . > \.
# The soft hyphen (U+00AD) is left out, since terminals hide it.
LATIN = "".join(chr(code) for code in range(0xA1, 0x100) if code != 0xAD)
MANY_SYMBOLS = string.ascii_uppercase + LATIN + "!#$%&'()*,/:;<=?@[]^_`{|}~"
RAW_NUMBERS_A_ROW = 256  # drawn for each row at first, which is enough for instances of 250 tokens

# The option `letters` of many tasks: instances are made of the first `letters` letters of the alphabet.
LetterCount = Annotated[Whole, Ge(2), Le(len(LETTERS))]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Instance:
    """An instance of a task, as text. Each character is a token, from U+0002 to U+00FF.

    Pieces that are given and pieces of the answer alternate: ("abc>", "cba.") or ("a-b", "a", "c", "b").
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
    """Random draws for one instance. Its seed, counter and row alone decide every number."""

    def __init__(self, raw_numbers: Sequence[int], seed: int, counter: int, row: int) -> None:
        """Take the first raw numbers of the row. Further ones are computed if they are needed."""
        self._unused = list(raw_numbers)[::-1]  # in reverse, since a list pops fast at its end
        self._key = (seed, counter, row)
        self._count = len(raw_numbers)  # of all raw numbers so far, used ones included

    def below(self, count: int) -> int:
        """Return a whole number from 0 to count - 1."""
        if not self._unused:
            # Compute twice as many, from the start again, since only few instances are that long.
            raw = more_draws(2 * self._count, *self._key)[self._count :]
            self._unused = raw.tolist()[::-1]
            self._count += len(raw)
        # The remainder prefers small numbers, by less than count / 2^64.
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
        # By hand, since the shuffles of Python and numpy may change with their versions.
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order


def draws_of_rows(count: int, seed: int, counter: int) -> list[Draws]:
    """Return the draws of `count` instances, each in a row. A row's draws do not depend on `count`."""
    raw = raw_draws(count * RAW_NUMBERS_A_ROW, seed, counter)
    rows = raw.reshape(count, RAW_NUMBERS_A_ROW).tolist()
    return [Draws(raw_numbers, seed, counter, row) for row, raw_numbers in enumerate(rows)]


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Generate instances of any size. The fields of a task are its options, with a type and a default."""

    name: ClassVar[str]  # as in `data.task`; for posenc's own tasks also the name of the file
    about: ClassVar[str]  # question and answer in a few words
    source: ClassVar[str]  # the papers that it comes from
    revision: ClassVar[int] = 1  # raised when a change of the code draws other instances
    smallest: ClassVar[int] = 1  # size of the smallest instance

    @abstractmethod
    def tokens(self, size: int) -> int:
        """Return how many tokens an instance of this size has at most."""

    @abstractmethod
    def instance(self, draws: Draws, size: int) -> Instance:
        """Return an instance of this size. It depends on the draws and the options alone."""

    @property
    def largest(self) -> int | None:
        """Return the largest size, if an alphabet limits it; else None."""
        return None
