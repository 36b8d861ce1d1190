"""sort: letters, then the same letters in the order of the alphabet; or how many, or which is most frequent.

    dbad>abdd.    ask=sort
    dbad>d2.      ask=count: how often the letter behind the mark comes; the letter is given
    dbad>d        ask=mode: the most frequent letter; no other one is as frequent

Source: Zhou et al. 2023 (What Algorithms can Transformers Learn?), arXiv 2310.16028. Its `count` counts
upwards from one number to another; here the letters of a multiset are counted.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from posenc.data.tasks.base import END, LETTERS, SEPARATOR, Draws, Instance, Task
from posenc.settings.numbers import Whole

MOST_DIGITS = 7  # of a count: windows have at most 2**24 tokens


@dataclass(frozen=True, kw_only=True)
class Sort(Task):
    """Ask for the letters in order, for the number of one of them, or for the most frequent one."""

    name: ClassVar[str] = "sort"
    about: ClassVar[str] = "letters -> in order; or the count of one; or the most frequent"
    source: ClassVar[str] = "arXiv 2310.16028"

    ask: Literal["sort", "count", "mode"] = "sort"
    letters: Annotated[Whole, Ge(2), Le(26)] = 8

    def tokens(self, size: int) -> int:
        answer_tokens = {"sort": size + len(END), "count": len(f"x{size}" + END), "mode": 1}
        return size + len(SEPARATOR) + answer_tokens[self.ask]

    def instance(self, draws: Draws, size: int) -> Instance:
        letters = LETTERS[: self.letters]
        string = draws.text(letters, size)
        if self.ask == "sort":
            return Instance((string + SEPARATOR, "".join(sorted(string)) + END))
        if self.ask == "count":
            letter = draws.choice(letters)
            return Instance((string + SEPARATOR + letter, f"{string.count(letter)}{END}"))
        while True:
            ranks = Counter(string).most_common(2)
            if len(ranks) == 1 or ranks[0][1] > ranks[1][1]:
                return Instance((string + SEPARATOR, ranks[0][0]))
            # two are as frequent: put one of them in a drawn place until it is ahead
            place = draws.below(size)
            string = string[:place] + ranks[0][0] + string[place + 1 :]
