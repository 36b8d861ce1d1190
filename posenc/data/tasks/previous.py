"""previous: at each place of a stream, the token before.

    a-baxb...    given a, b, x, ...; the answer behind each is the letter given before it

Letters are drawn with repetition, so only the position tells: the letter asked for stands two tokens
before the one that is given. The first place has no letter before it, and its `-` is given.

Source: the previous-token head, the first half of induction (Olsson et al. 2022, arXiv 2209.11895).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from posenc.data.tasks.base import LETTERS, Draws, Instance, Task
from posenc.settings.numbers import Whole

NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Previous(Task):
    """Ask for the letter before, at every place."""

    name: ClassVar[str] = "previous"
    about: ClassVar[str] = "at each place of a stream, the letter before"
    source: ClassVar[str] = "arXiv 2209.11895"
    smallest: ClassVar[int] = 2

    letters: Annotated[Whole, Ge(2), Le(26)] = 16

    def tokens(self, size: int) -> int:
        return 2 * size

    def instance(self, draws: Draws, size: int) -> Instance:
        stream = draws.text(LETTERS[: self.letters], size)
        pieces = [stream[0] + NOTHING + stream[1], stream[0]]
        for place in range(2, size):
            pieces += [stream[place], stream[place - 1]]
        return Instance(tuple(pieces))
