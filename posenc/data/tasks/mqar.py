"""mqar: pairs of a key and a value, then the keys in another order, each with its value.

    KaLbMc>LbMcKa    the answers are the values behind the keys

Keys are different ones of 146 symbols, values are letters. The number of pairs grows with the instance.

Source: Arora et al. 2023 (Zoology), arXiv 2312.04927: multi-query associative recall.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from posenc.data.tasks.base import LETTERS, MANY_SYMBOLS, SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Whole


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """Ask for the value of every key."""

    name: ClassVar[str] = "mqar"
    about: ClassVar[str] = "pairs of key and value, then keys -> their values"
    source: ClassVar[str] = "arXiv 2312.04927"

    letters: Annotated[Whole, Ge(2), Le(26)] = 16  # that serve as values

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
        asked = draws.shuffled(keys)
        pieces = [pairs + SEPARATOR + asked[0], value_of[asked[0]]]
        for key in asked[1:]:
            pieces += [key, value_of[key]]
        return Instance(tuple(pieces))
