"""reverse: a string, then the string from its end to its beginning.

    bdac>cadb.

Source: Kazemnejad et al. 2023 (The Impact of Positional Encoding on Length Generalization), arXiv 2305.19466.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from posenc.data.tasks.base import END, LETTERS, SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Whole


@dataclass(frozen=True, kw_only=True)
class Reverse(Task):
    """Ask for the string backwards."""

    name: ClassVar[str] = "reverse"
    about: ClassVar[str] = "a string -> the string backwards"
    source: ClassVar[str] = "arXiv 2305.19466"

    letters: Annotated[Whole, Ge(2), Le(26)] = 16

    def tokens(self, size: int) -> int:
        return 2 * size + len(SEPARATOR + END)

    def instance(self, draws: Draws, size: int) -> Instance:
        string = draws.text(LETTERS[: self.letters], size)
        return Instance((string + SEPARATOR, string[::-1] + END))
