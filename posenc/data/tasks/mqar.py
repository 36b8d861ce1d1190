"""mqar: pairs of a key and a value, then the keys in another order, each with its value.

    KaLbMc>LbMcKa    the answers are the values after the keys

An instance of size n has n pairs. Keys are drawn from 146 symbols and do not repeat; values are letters.

Source: Arora et al. 2023 (Zoology), arXiv 2312.04927: multi-query associative recall.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import LETTERS, MANY_SYMBOLS, SEPARATOR, Draws, Instance, LetterCount, Task


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """Ask for the value of every key."""

    name: ClassVar[str] = "mqar"
    about: ClassVar[str] = "pairs of key and value, then keys -> their values"
    source: ClassVar[str] = "arXiv 2312.04927"

    letters: LetterCount = 16  # from which values are drawn

    @property
    def largest(self) -> int | None:
        return len(MANY_SYMBOLS)

    def tokens(self, size: int) -> int:
        return 4 * size + len(SEPARATOR)

    def instance(self, draws: Draws, size: int) -> Instance:
        keys = draws.shuffled(MANY_SYMBOLS)[:size]
        values = draws.text(LETTERS[: self.letters], size)
        value_of = dict(zip(keys, values, strict=True))
        pairs = "".join([key + value for key, value in value_of.items()])
        # The separator and the first key are one piece that is given. Each other key follows an answer.
        first_key, *other_keys = draws.shuffled(keys)
        pieces = [pairs + SEPARATOR + first_key, value_of[first_key]]
        for key in other_keys:
            pieces += [key, value_of[key]]
        return Instance(tuple(pieces))
