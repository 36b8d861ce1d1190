"""previous: after each letter of a stream, the letter that came before it in the stream.

    a-baxb...    the stream is a, b, x, ...; the answer after b is a, the answer after x is b

Letters repeat, so the content does not tell where the answer stands. Only its position does: three places
before the answer, two before the letter that asks for it. No letter comes before the first one, so `-` is
given in place of its answer.

Source: after the previous-token head, the first half of induction (Olsson et al. 2022, arXiv 2209.11895).
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import LETTERS, Draws, Instance, LetterCount, Task

NOTHING = "-"  # given after the first letter


@dataclass(frozen=True, kw_only=True)
class Previous(Task):
    """Ask for the letter before, at every letter of a stream."""

    name: ClassVar[str] = "previous"
    about: ClassVar[str] = "at each place of a stream, the letter before"
    source: ClassVar[str] = "arXiv 2209.11895"
    smallest: ClassVar[int] = 2

    letters: LetterCount = 16

    def tokens(self, size: int) -> int:
        return 2 * size

    def instance(self, draws: Draws, size: int) -> Instance:
        stream = draws.text(LETTERS[: self.letters], size)
        pieces = [stream[0] + NOTHING + stream[1], stream[0]]  # given, answer, given, answer, ...
        for index in range(2, size):
            pieces += [stream[index], stream[index - 1]]
        return Instance(tuple(pieces))
