"""copy: a string, then the same string.

    bdac>bdac.

With `unique` characters do not repeat, so that each one determines its successor (induction), and the
alphabet has 146 characters. Without it letters repeat, so the model has to know its place in the string.

Source: Jelassi et al. 2024 (Repeat After Me), arXiv 2402.01032; for unique tokens Zhou et al. 2023 (What
Algorithms can Transformers Learn?), arXiv 2310.16028.
"""

from dataclasses import dataclass
from typing import ClassVar

from posenc.data.tasks.base import END, LETTERS, MANY_SYMBOLS, SEPARATOR, Draws, Instance, LetterCount, Task
from posenc.settings.numbers import Flag


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """Ask for the same string again."""

    name: ClassVar[str] = "copy"
    about: ClassVar[str] = "a string -> the same string"
    source: ClassVar[str] = "arXiv 2402.01032, 2310.16028"

    unique: Flag = False
    letters: LetterCount = 16  # size of the alphabet without `unique`

    def __post_init__(self) -> None:
        if self.unique and self.letters != Copy.letters:
            raise ValueError(
                f"letters={self.letters}: unique=true draws from all {len(MANY_SYMBOLS)} symbols"
            )

    @property
    def largest(self) -> int | None:
        return len(MANY_SYMBOLS) if self.unique else None

    def tokens(self, size: int) -> int:
        return 2 * size + len(SEPARATOR + END)

    def instance(self, draws: Draws, size: int) -> Instance:
        if self.unique:
            string = "".join(draws.shuffled(MANY_SYMBOLS)[:size])
        else:
            string = draws.text(LETTERS[: self.letters], size)
        return Instance((string + SEPARATOR, string + END))
