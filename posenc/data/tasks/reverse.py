"""reverse: a string, then the string from its end to its beginning.

    bdac>cadb.

Source: Kazemnejad et al. 2023 (The Impact of Positional Encoding on Length Generalization), arXiv 2305.19466.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import END, LETTERS, SEPARATOR, Draws, Instance, LetterCount, Task


@dataclass(frozen=True, kw_only=True)
class Reverse(Task):
    """Ask for the string backwards."""

    name: ClassVar[str] = "reverse"
    about: ClassVar[str] = "a string -> the string backwards"
    source: ClassVar[str] = "arXiv 2305.19466"

    letters: LetterCount = 16

    def tokens(self, size: int) -> int:
        return 2 * size + len(SEPARATOR + END)

    def instance(self, draws: Draws, size: int) -> Instance:
        string = draws.text(LETTERS[: self.letters], size)
        return Instance((string + SEPARATOR, string[::-1] + END))
